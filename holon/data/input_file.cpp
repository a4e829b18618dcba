#include "holon/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "holon/base/error.h"

namespace holon::data {

InputFile::InputFile(const std::filesystem::path& path) : name_(path.string()) {
  do fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) fail_runtime("cannot open {}: {}. Check the path.", name_, std::strerror(errno));
  struct stat info {};
  const bool regular = ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
  size_ = static_cast<uint64_t>(info.st_size);
  if (regular) return;
  ::close(fd_);
  fail_runtime("{} is not a regular file. Name a file, not a folder, a pipe or a device.", name_);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    ssize_t n = ::pread(fd_, out.data(), std::min(out.size(), size_t{1} << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_runtime("cannot read {}: {}.", name_, std::strerror(errno));
    if (n == 0)
      fail_runtime("{}: it ends after {} bytes; it had {} when it was opened. Another program has cut it off since.",
                   name_, offset, size_);
    offset += static_cast<uint64_t>(n);
    out = out.subspan(static_cast<size_t>(n));
  }
}

std::vector<std::byte> read_whole(const std::filesystem::path& path, uint64_t most_bytes) {
  InputFile file(path);
  if (file.size() > most_bytes)
    fail_runtime("{}: it has {} bytes; such a file has at most {}.", file.name(), file.size(), most_bytes);
  std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
  file.read(0, bytes);
  return bytes;
}

}  // namespace holon::data
