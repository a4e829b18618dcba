// File descriptors that close themselves, and numbers on the wire.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "holon/base/error.h"

namespace holon::comm {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Little-endian, whatever the machine.
inline void put_u32(std::string& to, uint32_t v) {
  for (int i = 0; i < 4; ++i) to.push_back(static_cast<char>(v >> 8 * i));
}
inline uint32_t get_u32(const char* from) {
  uint32_t v = 0;
  for (int i = 0; i < 4; ++i) v |= static_cast<uint32_t>(static_cast<uint8_t>(from[i])) << 8 * i;
  return v;
}

}  // namespace holon::comm
