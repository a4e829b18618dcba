#include "holon/data/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::data {

InputFile::InputFile(const FilePath& path) : name_(path.string()) { open(); }

InputFile::~InputFile() { close(); }

void InputFile::open() {
  if (fd_ >= 0) return;
  int fd;
  do fd = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) fail_runtime("cannot open {}: {}. Check the path.", name_, std::strerror(errno));
  struct stat info {};
  const bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const std::pair<uint64_t, uint64_t> file(info.st_dev, info.st_ino);
  const bool another = file_.second != 0 && (file != file_ || static_cast<uint64_t>(info.st_size) != size_);
  if (!regular || another) ::close(fd);
  if (!regular) fail_runtime("{} is not a regular file. Name a file, not a folder, a pipe or a device.", name_);
  if (another) fail_runtime("{}: it was replaced by another file while it was read. Read it again.", name_);
  fd_ = fd;
  file_ = file;
  size_ = static_cast<uint64_t>(info.st_size);
}

void InputFile::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    ssize_t n = ::pread(fd_, out.data(), std::min(out.size(), size_t{1} << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_runtime("cannot read {}: {}.", name_, std::strerror(errno));
    if (n == 0)
      fail_runtime("{}: it ends after {} bytes; it had {} when it was opened. Another program has truncated it since.",
                   name_, offset, size_);
    offset += static_cast<uint64_t>(n);
    out = out.subspan(to_size(n));
  }
}

std::vector<std::byte> read_whole(const FilePath& path, uint64_t most_bytes) {
  InputFile file(path);
  if (file.size() > most_bytes)
    fail_runtime("{}: it has {} bytes; a file of this kind has at most {}.", file.name(), file.size(), most_bytes);
  std::vector<std::byte> bytes(to_size(file.size()));
  file.read(0, bytes);
  return bytes;
}

}  // namespace holon::data
