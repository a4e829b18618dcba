// File descriptors that close themselves, numbers on the wire, and TCP addresses.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
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

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  bool loopback = false;
};

// Errors: the name has no address.
inline Address resolve(const std::string& host, int port) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (int e = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); e != 0 || !list)
    fail_runtime("MASTER_ADDR \"{}\" has no network address: {}. Use a host name that resolves, or 127.0.0.1.", host,
                 gai_strerror(e));
  // IPv4 first: "localhost" often means both, and the two sides must agree.
  addrinfo* best = list;
  for (addrinfo* a = list; a; a = a->ai_next)
    if (a->ai_family == AF_INET) {
      best = a;
      break;
    }
  Address result;
  std::memcpy(&result.storage, best->ai_addr, best->ai_addrlen);
  result.size = best->ai_addrlen;
  if (best->ai_family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(&result.storage);
    result.loopback = ntohl(in->sin_addr.s_addr) >> 24 == 127;
  } else {
    result.loopback = IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(&result.storage)->sin6_addr);
  }
  freeaddrinfo(list);
  return result;
}

}  // namespace holon::comm
