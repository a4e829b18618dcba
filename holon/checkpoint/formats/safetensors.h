// Files in the format safetensors: 8 bytes of size, a JSON header (name -> dtype, shape, place; text under
// "__metadata__"), and the tensors' bytes, little-endian and in row-major order.
//
// Files of save() have checksums (CRC-32C) of their own in the metadata: of each kBlockBytes of the tensors' bytes, and
// of the header with these. What is read is compared with them; other programs pass over them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holon/array/array.h"
#include "holon/data/atomic_file.h"
#include "holon/data/input_file.h"
#include "holon/global/slice.h"

namespace holon::checkpoint {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  Dims shape;
  uint64_t begin = 0, end = 0;  // of its bytes behind the header
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes, which cover what follows the header, each byte once
  Metadata metadata;
  size_t bytes = 0;  // of the header, with its size
};

// Reads and checks the header of a file of file_bytes, of which head is the beginning. Errors (RuntimeError), naming
// the file: it is something else; head ends before the header does; sizes, types or places that do not fit the file or
// each other, in whatever way; a dtype that Holon has not. No more memory is taken than the header is long, a few times
// over.
SafetensorsHeader parse_safetensors(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name);
// The same of a whole file.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name);
// How many bytes of a file parse_safetensors() needs, of which head is the beginning. Errors: as there.
size_t header_bytes(std::span<const std::byte> head, uint64_t file_bytes, std::string_view name);

// The format's names: "F32", "BF16", "BOOL".
std::string_view format_name(DType dtype);
std::optional<DType> dtype_of_format(std::string_view name);
// The number of bytes; nullopt if it is beyond 64 bits.
std::optional<uint64_t> bytes_of(const Dims& shape, DType dtype);

// The text of a header: metadata, if there is any, and tensors that follow each other in this order, whose places are
// worked out. Spaces at its end make the tensors' bytes aligned in a mapped file. Errors (ValueError): two tensors of
// one name; a text that is longer than the format allows.
std::string header_text(std::vector<TensorInfo>& tensors, const Metadata& metadata);

inline constexpr uint64_t kLargestHeader = 100'000'000;  // as other readers have it
inline constexpr const char* kMetadata = "__metadata__";
inline constexpr uint64_t kBlockBytes = 65536;

// By which an index knows one of its files.
struct FileSum {
  uint64_t bytes = 0;
  uint32_t header = 0;  // the checksum of the header, in which are those of all else

  bool operator==(const FileSum&) const = default;
};

// How many bytes of checkpoints' files, and of tensors from other jobs, this rank has read.
std::atomic<uint64_t>& bytes_read_by_rank();

// A file of which only what is requested is read. For one thread at a time.
class SafetensorsFile {
 public:
  // Errors: as parse_safetensors(), and a file that cannot be opened, or is not the one that `expected` says.
  explicit SafetensorsFile(const std::filesystem::path& path, const std::optional<FileSum>& expected = {});

  const SafetensorsHeader& header() const { return header_; }
  const std::string& name() const { return file_.name(); }
  // The same for the same header.
  uint32_t fingerprint() const { return fingerprint_; }
  const TensorInfo* find(const std::string& name) const;
  // Copies the region of a tensor that begins at `from` to the region of the same size that begins at `to` in out.
  // Pre: both are inside, and dtypes are the same. Errors: a bool that is neither 0 nor 1; bytes that are not those
  // that were written; a file that has been cut off meanwhile.
  void read(const TensorInfo& info, const Dims& from, const Dims& size, Array& out, const Dims& to) const;
  Array read(const TensorInfo& info) const;
  // Reads all bytes and compares them with the checksums, if there are any. Errors: as read().
  void verify() const;
  bool has_checksums() const { return !blocks_.empty() || data_bytes() == 0; }
  uint64_t data_bytes() const { return file_.size() - header_.bytes; }
  // Gives the file's descriptor and memory back until the next read().
  void rest() {
    file_.close();
    stage_ = {};
  }

 private:
  // One block's bytes, kept for what is next to what was read last.
  struct Stage {
    std::vector<std::byte> bytes;
    uint64_t block = UINT64_MAX;
  };
  void find_checksums(std::span<const std::byte> head, const std::optional<FileSum>& expected);
  void check_block(uint64_t block, std::span<const std::byte> bytes) const;
  void fill(Stage& stage, uint64_t block) const;
  void fetch(uint64_t begin, uint64_t end, std::byte* to, Stage& stage) const;
  void fetch_blocks(uint64_t begin, uint64_t end, std::byte* to) const;
  void read_file(uint64_t offset, std::span<std::byte> out) const;

  std::atomic<uint64_t>* bytes_read_;
  mutable data::InputFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> by_name_;
  std::vector<uint32_t> blocks_;  // checksums, if there are any
  uint32_t fingerprint_ = 0;
  mutable Stage stage_;
};

// Writes tensors one after the other, so that not all of them need be there at once.
class SafetensorsWriter {
 public:
  // The tensors as they will come; places are worked out here. Errors: as AtomicFile; two tensors of one name.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors, const Metadata& metadata,
                    bool checksums = false);
  // The next tensor. Pre: it has the dtype and shape that were announced.
  void write(const Array& array);
  // The same, in pieces that `read` returns, so that it need not be in memory at once.
  void write(const std::function<Array(const Region& piece)>& read);
  // Errors (internal): fewer tensors than announced.
  FileSum commit();

 private:
  void append(const Array& array);
  void sum(std::span<const std::byte> bytes);

  data::AtomicFile file_;
  std::vector<TensorInfo> tensors_;
  size_t written_ = 0;
  std::string header_;  // JSON, with zeros for the checksums until they are known
  size_t sums_at_ = 0;  // where in it they are; 0: nowhere
  uint64_t data_bytes_ = 0, summed_ = 0;
  uint32_t block_ = 0;  // of the block that is begun
};

}  // namespace holon::checkpoint
