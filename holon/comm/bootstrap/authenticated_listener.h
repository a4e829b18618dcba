// Listening sockets whose connections count once both sides have proven that they know the token (handshake.h).
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "holon/comm/bootstrap/connection.h"
#include "holon/comm/bootstrap/handshake.h"
#include "holon/comm/bootstrap/socket.h"

struct pollfd;

namespace holon::comm {

// For one thread. Strangers that are silent are dropped, after ten seconds or when there are too many of them.
class AuthenticatedListener {
 public:
  AuthenticatedListener(std::vector<Fd> sockets, std::string token, std::string purpose);

  struct Connection {
    Fd fd;              // non-blocking
    uint32_t from = 0;  // what the other side calls itself
  };
  // Adds what poll() is to wait for. Call take() when one is ready, and every few seconds.
  void add_to(std::vector<pollfd>& fds) const;
  // Takes what has arrived, without waiting; returns the connections that have become known.
  std::vector<Connection> take();
  // How many connections had another token so far.
  int refused() const { return refused_; }

 private:
  struct Unknown {
    Fd fd;
    Handshake handshake;
    Deadline until;
  };
  void accept_from(int listener);
  Handshake::State go_on(Unknown& c);

  std::vector<Fd> sockets_;
  const std::string token_, purpose_;
  const double heartbeat_s_;
  std::list<Unknown> unknown_;  // the oldest first
  int refused_ = 0;
};

}  // namespace holon::comm
