// Two jobs in one process, whose ranks are threads.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "holon/comm/run_ranks.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {

// "127.0.0.1:PORT" of a port that nobody uses.
inline std::string free_address() {
  int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof a;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0) std::abort();
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size);
  ::close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(a.sin_port));
}

struct Errors {
  std::string exports, receives;  // "no error"
};

// Runs both at once, each on so many ranks, and returns when both have ended.
inline Errors two_jobs(int n_export, const std::function<void(int)>& exports, int n_receive,
                       const std::function<void(int)>& receives) {
  Errors errors;
  std::thread other([&] { errors.exports = error_of([&] { comm::run_ranks(n_export, exports); }); });
  errors.receives = error_of([&] { comm::run_ranks(n_receive, receives); });
  other.join();
  return errors;
}

}  // namespace holon::checkpoint
