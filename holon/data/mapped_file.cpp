#include "holon/data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "holon/base/error.h"

namespace holon::data {

MappedFile::MappedFile(const std::filesystem::path& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_runtime("cannot open {}: {}. Check the path.", path.string(), std::strerror(errno));
  struct stat info {};
  bool regular = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (regular && info.st_size > 0) {
    void* p = ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
      data_ = static_cast<const std::byte*>(p);
      size_ = static_cast<size_t>(info.st_size);
    }
  }
  int error = errno;
  ::close(fd);
  if (!regular) fail_runtime("{} is not a regular file. Name a file, not a folder or a device.", path.string());
  if (info.st_size > 0 && !data_) fail_runtime("cannot map {}: {}.", path.string(), std::strerror(error));
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace holon::data
