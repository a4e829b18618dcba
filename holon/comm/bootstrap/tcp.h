// TCP: what names mean, and sockets that listen and connect without waiting.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "holon/comm/bootstrap/socket.h"

namespace holon::comm {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  bool loopback() const;
  bool is_ip() const { return storage.ss_family == AF_INET || storage.ss_family == AF_INET6; }
  bool ipv4() const { return storage.ss_family == AF_INET; }
  std::string ip() const;  // "10.0.0.1" or "fd00::1"; an IPv4 address in IPv6's clothes is told as IPv4
  int port() const;
  void set_port(int port);
  std::string str() const;  // with the port
};

// How users write a host and a port together: "node1:29500", "[fd00::1]:29500".
std::string place_text(const std::string& host, int port);
// "localhost", 127.0.0.1 and its like: on every machine it means that machine itself.
bool names_this_machine(const std::string& host);

// All addresses of a name, IPv4 first; of several loopback ones the first alone, so that two sides agree. Empty: none,
// and *why says so.
std::vector<Address> resolve(const std::string& host, int port, std::string* why);
// Asks again until there is one: a name may be known later than the program starts that is called by it. Errors: it has
// no address within limit_s.
std::vector<Address> resolve_within(const std::string& host, int port, double limit_s);

// Non-blocking. Invalid: errno says why.
Fd listen_tcp(const Address& at);
// Begins to connect. Invalid: errno says why. When it is writable, connect_error() tells how it went.
Fd start_connect(const Address& to);
int connect_error(int fd);

Address local_address(int fd);
Address peer_address(int fd);

}  // namespace holon::comm
