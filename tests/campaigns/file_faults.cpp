// To be preloaded: between two calls for files of a checkpoint a process sends signals, to itself too, and waits; or
// calls fail.
//
// Calls are counted from arm() on. Before (or after) the one of number `at`: `signal` goes to the processes `pids`, and
// then the process waits for `wait_us`. From fail_with() on, the call of number `at` (and, if `forever`, all that
// follow) does nothing and fails. With log_to() each call is written down, a line for each, and none fails.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <string>

namespace {

std::atomic<int> calls{0};
int at = -1, number = 0, wait_us = 0, after = 0, n_pids = 0, log_fd = -1;
int error = 0, forever = 0;  // of fail_with()
int pids[16];

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

std::string path_of(int fd) {
  char text[4096], link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, text, sizeof text);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "";
}

// Counts the call if it is for such a file, and strikes if it is the one.
class Call {
 public:
  Call(const char* name, const std::string& path) {
    if (at < 0 && log_fd < 0) return;
    if (path.find("checkpoint") == path.npos) return;
    if (log_fd >= 0) {
      std::string line = std::string(name) + " " + path + "\n";
      static auto plain = next<ssize_t (*)(int, const void*, size_t)>("write");
      (void)!plain(log_fd, line.data(), line.size());
    }
    const int call = calls.fetch_add(1);
    mine_ = call == at || (forever && at >= 0 && call > at);
    if (mine_ && !after && error == 0) strike();
  }
  // Whether the call is to fail, and errno says why.
  bool fails() const {
    if (!mine_ || error == 0) return false;
    errno = error;
    return true;
  }
  ~Call() {
    if (mine_ && after && error == 0) strike();
  }

 private:
  void strike() {
    for (int i = 0; i < n_pids; ++i) kill(pids[i], number);
    usleep(static_cast<useconds_t>(wait_us));
  }
  bool mine_ = false;
};

}  // namespace

extern "C" {

void arm(int at_, int number_, const int* pids_, int n, int wait_us_, int after_) {
  number = number_, wait_us = wait_us_, after = after_, n_pids = n;
  memcpy(pids, pids_, static_cast<size_t>(n) * sizeof(int));
  error = forever = 0;
  calls = 0;
  at = at_;
}
// at_ < 0: no call fails any more.
void fail_with(int at_, int error_, int forever_) {
  error = error_, forever = forever_;
  calls = 0;
  at = at_;
}
void log_to(int fd) { log_fd = fd; }
int calls_made() { return calls; }

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  Call call(flags & O_CREAT ? "create" : "open", flags & (O_WRONLY | O_RDWR) ? path : "");
  if (call.fails()) return -1;
  return next<int (*)(const char*, int, ...)>("open")(path, flags, mode);
}
ssize_t write(int fd, const void* data, size_t n) {
  Call call("write", at < 0 && log_fd < 0 ? "" : path_of(fd));
  if (call.fails()) return -1;
  static auto plain = next<ssize_t (*)(int, const void*, size_t)>("write");
  return plain(fd, data, n);
}
ssize_t pwrite(int fd, const void* data, size_t n, off_t offset) {
  Call call("pwrite", path_of(fd));
  if (call.fails()) return -1;
  return next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite")(fd, data, n, offset);
}
int fsync(int fd) {
  Call call("fsync", path_of(fd));
  if (call.fails()) return -1;
  return next<int (*)(int)>("fsync")(fd);
}
int mkdir(const char* path, mode_t mode) {
  Call call("mkdir", path);
  if (call.fails()) return -1;
  return next<int (*)(const char*, mode_t)>("mkdir")(path, mode);
}
int rename(const char* from, const char* to) {
  Call call("rename", to);
  if (call.fails()) return -1;
  return next<int (*)(const char*, const char*)>("rename")(from, to);
}
int link(const char* from, const char* to) {
  Call call("link", to);
  return next<int (*)(const char*, const char*)>("link")(from, to);
}
int ftruncate(int fd, off_t bytes) {
  Call call("ftruncate", path_of(fd));
  return next<int (*)(int, off_t)>("ftruncate")(fd, bytes);
}
int unlink(const char* path) {
  Call call("unlink", path);
  if (call.fails()) return -1;
  return next<int (*)(const char*)>("unlink")(path);
}
int rmdir(const char* path) {
  Call call("rmdir", path);
  if (call.fails()) return -1;
  return next<int (*)(const char*)>("rmdir")(path);
}
int remove(const char* path) {
  Call call("remove", path);
  if (call.fails()) return -1;
  return next<int (*)(const char*)>("remove")(path);
}
}
