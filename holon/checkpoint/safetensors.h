// Files in the format safetensors: 8 bytes of size, a JSON header (name -> dtype, shape, place; text under
// "__metadata__"), and the tensors' bytes, little-endian and in row-major order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "holon/array/array.h"
#include "holon/data/atomic_file.h"
#include "holon/data/mapped_file.h"
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

// Reads and checks a header. Errors (RuntimeError), naming the file: sizes, types or places that do not fit the file or
// each other, in whatever way; a dtype that Holon has not. No more memory is taken than the header is long, some times
// over.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view name);

// The format's names: "F32", "BF16", "BOOL".
std::string_view format_name(DType dtype);
std::optional<DType> dtype_of_format(std::string_view name);
// The number of bytes; nullopt if it is beyond 64 bits.
std::optional<uint64_t> bytes_of(const Dims& shape, DType dtype);

// A file that is mapped into memory, so that only what is asked for is read.
class SafetensorsFile {
 public:
  // Errors: as parse_safetensors(), and a file that cannot be opened.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const SafetensorsHeader& header() const { return header_; }
  const std::string& name() const { return name_; }
  const TensorInfo* find(const std::string& name) const;
  // Copies the box of a tensor that begins at `from` to the box of the same size that begins at `to` in out.
  // Pre: both lie inside, and dtypes are the same. Errors: a bool that is neither 0 nor 1.
  void read(const TensorInfo& info, const Dims& from, const Dims& size, Array& out, const Dims& to) const;
  Array read(const TensorInfo& info) const;

 private:
  std::string name_;
  data::MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> by_name_;
};

// Writes tensors one after the other, so that not all of them need be there at once.
class SafetensorsWriter {
 public:
  // The tensors as they will come; places are worked out here. Errors: as AtomicFile; two tensors of one name.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorInfo> tensors, const Metadata& metadata);
  // The next tensor. Pre: it has the dtype and shape that were announced.
  void write(const Array& array);
  // Errors (internal): fewer tensors than announced.
  void commit();

 private:
  data::AtomicFile file_;
  std::vector<TensorInfo> tensors_;
  size_t written_ = 0;
};

}  // namespace holon::checkpoint
