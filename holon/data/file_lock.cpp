#include "holon/data/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace holon::data {

namespace {

int lock(int fd, int how) {
  int result;
  do result = ::flock(fd, how);
  while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

int create_locked(const std::filesystem::path& path) {
  for (;;) {
    int fd;
    do fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return -1;
    // Between the two calls somebody may have found it unlocked, and removed it.
    struct stat info {};
    if (lock(fd, LOCK_EX) != 0 || ::fstat(fd, &info) != 0 || info.st_nlink > 0) return fd;
    ::close(fd);
  }
}

bool remove_if_unlocked(const std::filesystem::path& path) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0) return errno == ENOENT;
  // Removed while it is locked, so that create_locked() sees it.
  bool removed = lock(fd, LOCK_EX | LOCK_NB) == 0 && (::unlink(path.c_str()) == 0 || errno == ENOENT);
  ::close(fd);
  return removed;
}

}  // namespace holon::data
