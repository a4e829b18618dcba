// A folder that several ranks wrote: a file of parts for each (safetensors), and an index of what is where (JSON).
//
// The files of one save have their own names, and the index is replaced last: what was there before stays whole
// until then.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "holon/checkpoint/core/layout.h"
#include "holon/checkpoint/formats/safetensors.h"

namespace holon::checkpoint {

inline constexpr const char* kIndexFile = "holon-index.json";
// The name under which a single file is in a folder that was there.
inline constexpr const char* kWholeFile = "holon.safetensors";
// The key of a file's metadata under which the structure of what was saved is kept.
inline constexpr const char* kTreeKey = "holon";

// A region of a tensor, in a file under the tensor's name.
struct Part {
  std::string file;
  Dims offset, shape;
};

struct IndexEntry {
  DType dtype = DType::kFloat32;
  Dims shape;
  std::optional<SavedLayout> layout;  // nothing: a local tensor
  std::vector<Part> parts;            // disjoint; together the whole tensor
};

struct Index {
  std::string tree;
  std::map<std::string, IndexEntry> tensors;
  std::map<std::string, FileSum> files;  // of the parts; without those of older versions
  std::vector<std::string> own;          // texts of a Checkpointer, one for each rank
};

std::string index_text(const Index& index);
// Replaces the index of a folder. Errors: it cannot be written.
void write_index(const Index& index, const std::filesystem::path& folder);
// Errors (RuntimeError), naming the file: no JSON of this form; parts that overlap, are outside or leave something out;
// a part's file that is not a plain name; a text that is not the one that was written.
Index parse_index(std::string_view text, std::string_view name);

// Reads regions of tensors out of a folder's files, each opened when first needed.
class FolderReader {
 public:
  // Errors: as parse_index(), and an index that cannot be opened; Superseded, here and below, where the index has been
  // replaced since it was read, or is not there any more.
  explicit FolderReader(const std::filesystem::path& folder);
  const Index& index() const { return index_; }
  std::string name() const { return (folder_ / kIndexFile).string(); }
  uint32_t fingerprint() const { return fingerprint_; }  // the same for the same index
  const IndexEntry& entry(const std::string& tensor) const;
  // Errors: a file that is missing, damaged, or holds another part than the index says.
  Array read(const std::string& tensor, const Dims& offset, const Dims& shape);
  Array read(const std::string& tensor);

 private:
  Array read_parts(const std::string& tensor, const Dims& offset, const Dims& shape);
  const SafetensorsFile& file(const std::string& name);
  std::filesystem::path folder_;
  Index index_;
  uint32_t fingerprint_ = 0;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::deque<SafetensorsFile*> awake_;  // whose descriptors are open; the others rest
};

// The names of part files that the folder's index speaks of; none where there is no index. nullopt: it cannot be read.
std::optional<std::vector<std::string>> files_of_index(const std::filesystem::path& folder);

}  // namespace holon::checkpoint
