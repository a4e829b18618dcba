#include "holon/comm/bootstrap/tcp.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"

namespace holon::comm {

namespace {

const sockaddr_in& v4(const Address& a) { return reinterpret_cast<const sockaddr_in&>(a.storage); }
const sockaddr_in6& v6(const Address& a) { return reinterpret_cast<const sockaddr_in6&>(a.storage); }

Fd tcp_socket(const Address& of) {
  return Fd(socket(of.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

template <class Ask>
Address ask_socket(int fd, Ask ask) {
  Address a;
  a.size = sizeof a.storage;
  if (ask(fd, reinterpret_cast<sockaddr*>(&a.storage), &a.size) != 0) a = {};
  return a;
}

}  // namespace

bool Address::loopback() const {
  if (ipv4()) return ntohl(v4(*this).sin_addr.s_addr) >> 24 == 127;
  if (storage.ss_family != AF_INET6) return false;
  const in6_addr& a = v6(*this).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127);
}

std::string Address::ip() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (ipv4()) {
    inet_ntop(AF_INET, &v4(*this).sin_addr, text, sizeof text);
  } else if (storage.ss_family == AF_INET6) {
    const in6_addr& a = v6(*this).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&a))
      inet_ntop(AF_INET, a.s6_addr + 12, text, sizeof text);
    else
      inet_ntop(AF_INET6, &a, text, sizeof text);
  }
  return text;
}

int Address::port() const { return ntohs(ipv4() ? v4(*this).sin_port : v6(*this).sin6_port); }

void Address::set_port(int port) {
  const auto n = htons(static_cast<uint16_t>(port));
  if (ipv4())
    reinterpret_cast<sockaddr_in&>(storage).sin_port = n;
  else
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = n;
}

std::string Address::str() const { return place_text(ip(), port()); }

std::string place_text(const std::string& host, int port) {
  return host.find(':') == std::string::npos || host.starts_with("[") ? fmt::format("{}:{}", host, port)
                                                                      : fmt::format("[{}]:{}", host, port);
}

bool names_this_machine(const std::string& host) {
  in_addr a;
  return host == "localhost" || host == "::1" || host == "[::1]" ||
      (host.starts_with("127.") && inet_pton(AF_INET, host.c_str(), &a) == 1);
}

std::vector<Address> resolve(const std::string& host, int port, std::string* why) {
  std::string name = host;
  if (name.starts_with("[") && name.ends_with("]")) name = name.substr(1, name.size() - 2);
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (int e = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &list); e != 0) {
    *why = e == EAI_SYSTEM ? strerror(errno) : gai_strerror(e);
    return {};
  }
  std::vector<Address> found;
  for (int family : {AF_INET, AF_INET6})
    for (addrinfo* a = list; a; a = a->ai_next) {
      if (a->ai_family != family) continue;
      Address address;
      std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
      address.size = a->ai_addrlen;
      found.push_back(address);
    }
  freeaddrinfo(list);
  if (found.empty()) *why = "it has no IPv4 or IPv6 address";
  auto loopback = std::find_if(found.begin(), found.end(), [](const Address& a) { return a.loopback(); });
  if (loopback != found.end())
    found.erase(std::remove_if(loopback + 1, found.end(), [](const Address& a) { return a.loopback(); }), found.end());
  return found;
}

std::vector<Address> resolve_within(const std::string& host, int port, double limit_s) {
  const auto start = std::chrono::steady_clock::now();
  for (std::string why;;) {
    if (auto found = resolve(host, port, &why); !found.empty()) return found;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >= limit_s)
      fail_runtime("MASTER_ADDR \"{}\" has no network address: {} (asked again for {:.3g} s). Use a host name that "
                   "resolves, or an address; HOLON_RENDEZVOUS_TIMEOUT_S raises the limit.",
                   host, why, limit_s);
    if (auto poll = blocking_hooks().poll) poll();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

Fd listen_tcp(const Address& at) {
  Fd fd = tcp_socket(at);
  if (!fd) return fd;
  int one = 1, zero = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (!at.ipv4()) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.size) != 0 || listen(fd.get(), 1024) != 0) {
    const int error = errno;
    fd = Fd();
    errno = error;
  }
  return fd;
}

Fd start_connect(const Address& to) {
  Fd fd = tcp_socket(to);
  if (!fd) return fd;
  int one = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.size) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    fd = Fd();
    errno = error;
  }
  return fd;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error) return error;
  // Without a listener, a connection to a port of this machine may connect to itself.
  const Address me = local_address(fd), peer = peer_address(fd);
  return me.size == peer.size && std::memcmp(&me.storage, &peer.storage, me.size) == 0 ? ECONNREFUSED : 0;
}

Address local_address(int fd) { return ask_socket(fd, getsockname); }
Address peer_address(int fd) { return ask_socket(fd, getpeername); }

}  // namespace holon::comm
