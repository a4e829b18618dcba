#include "holon/comm/bootstrap/inherited.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>

namespace holon::comm {

namespace {

struct Sockets {
  std::mutex mutex;
  std::map<int, ino_t> known;
};

// Never destroyed: a fork may come at any time.
Sockets& sockets() {
  static auto* all = new Sockets;
  return *all;
}

// The descriptor may be another file's by now. The place is kept: what closes it later must not close a stranger's.
void drop_all() {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (auto [fd, inode] : sockets().known) {
    struct stat is {};
    if (fstat(fd, &is) != 0 || !S_ISSOCK(is.st_mode) || is.st_ino != inode) continue;
    if (null < 0 || dup3(null, fd, O_CLOEXEC) < 0) close(fd);
  }
  if (null >= 0) close(null);
}

}  // namespace

void close_in_children(int socket) {
  static const bool watching = [] {
    pthread_atfork([] { sockets().mutex.lock(); }, [] { sockets().mutex.unlock(); },
                   [] {
                     drop_all();
                     sockets().mutex.unlock();
                   });
    return true;
  }();
  (void)watching;
  struct stat is {};
  if (fstat(socket, &is) != 0 || !S_ISSOCK(is.st_mode)) return;
  if (int flags = fcntl(socket, F_GETFD); flags >= 0) fcntl(socket, F_SETFD, flags | FD_CLOEXEC);
  std::lock_guard lock(sockets().mutex);
  sockets().known[socket] = is.st_ino;
}

}  // namespace holon::comm
