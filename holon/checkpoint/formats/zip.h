// Zip archives whose entries are not compressed, as torch.save() writes them, read piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holon/data/input_file.h"

namespace holon::checkpoint {

bool is_zip(std::span<const std::byte> first);

struct ZipEntry {
  uint64_t header = 0;  // place of its local header
  uint64_t bytes = 0;   // of its content
  bool stored = true;   // neither compressed nor encrypted
};

// For one thread at a time, except read().
class ZipFile {
 public:
  // Errors (RuntimeError), here and below, naming the file: it cannot be opened; places or sizes that do not fit the
  // file, in whatever way; two entries of one name. No more memory is taken than the directory is long, a few times
  // over.
  explicit ZipFile(const std::filesystem::path& path);

  const std::string& name() const { return file_.name(); }
  uint64_t file_bytes() const { return file_.size(); }
  uint32_t fingerprint() const { return fingerprint_; }  // the same for the same directory
  const std::unordered_map<std::string, ZipEntry>& entries() const { return entries_; }
  // nullptr: there is none of this name.
  const ZipEntry* find(const std::string& name) const;
  // Where in the file an entry's content begins. Errors also: there is no such entry; it is compressed or encrypted.
  uint64_t content(const std::string& entry) const;
  // The bytes of the file from a place on.
  void read(uint64_t at, std::span<std::byte> out) const { file_.read(at, out); }
  // An entry's whole content. Errors also: it is longer than most_bytes.
  std::string text(const std::string& entry, uint64_t most_bytes) const;
  void open() { file_.open(); }
  void close() { file_.close(); }

 private:
  data::InputFile file_;
  uint32_t fingerprint_ = 0;
  std::unordered_map<std::string, ZipEntry> entries_;
};

}  // namespace holon::checkpoint
