// A file that is read piece by piece. It is not mapped: one that another program cuts off meanwhile is an error, where
// touching a map of it would be the end of the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "holon/base/file_path.h"

namespace holon::data {

class InputFile {
 public:
  // Errors (RuntimeError): the file cannot be opened, or is not a regular one; a named pipe is not waited for.
  explicit InputFile(const FilePath& path);
  InputFile(InputFile&& o) noexcept
      : name_(std::move(o.name_)), size_(o.size_), file_(o.file_), fd_(std::exchange(o.fd_, -1)) {}
  InputFile& operator=(InputFile&& o) noexcept {
    std::swap(name_, o.name_), std::swap(size_, o.size_), std::swap(file_, o.file_), std::swap(fd_, o.fd_);
    return *this;
  }
  ~InputFile();

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }  // in bytes, when it was opened
  // Fills out with the bytes from offset on. Any number of threads may. Errors: the file has fewer.
  // Pre: it is open.
  void read(uint64_t offset, std::span<std::byte> out) const;

  // Gives the descriptor back, of which a process has few, until it is opened again. Errors of that: as the
  // constructor's; another file has taken its place.
  void close();
  void open();

 private:
  std::string name_;
  uint64_t size_ = 0;
  std::pair<uint64_t, uint64_t> file_;  // device and number
  int fd_ = -1;
};

// All bytes of a file. Errors: as InputFile; more than most_bytes.
std::vector<std::byte> read_whole(const FilePath& path, uint64_t most_bytes = UINT64_MAX);

}  // namespace holon::data
