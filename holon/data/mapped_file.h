// A file's bytes by memory map: read when touched, shared between the processes of a host.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <utility>

namespace holon::data {

class MappedFile {
 public:
  // Errors (RuntimeError): the file cannot be opened, or is not a regular one. An empty file has no bytes.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& o) noexcept : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  MappedFile& operator=(MappedFile&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace holon::data
