#include "holon/comm/bootstrap/authenticated_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "holon/base/index.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"

namespace holon::comm {

namespace {
constexpr size_t kMostUnknown = 64;
constexpr double kAnswerSeconds = 10;
}  // namespace

AuthenticatedListener::AuthenticatedListener(std::vector<Fd> sockets, std::string token, std::string purpose)
    : sockets_(std::move(sockets)),
      token_(std::move(token)),
      purpose_(std::move(purpose)),
      heartbeat_s_(heartbeat_limit_s()) {
  for (auto& socket : sockets_) close_in_children(socket.get());
}

void AuthenticatedListener::add_to(std::vector<pollfd>& fds) const {
  for (auto& socket : sockets_) fds.push_back({socket.get(), POLLIN, 0});
  for (auto& c : unknown_) fds.push_back({c.fd.get(), POLLIN, 0});
}

void AuthenticatedListener::accept_from(int listener) {
  for (;;) {
    Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && errno == EINTR) continue;
    if (!fd) {
      if (errno != EMFILE && errno != ENFILE) return;
      // No descriptor is left: who is silent makes way, or else the next call comes in a moment.
      if (!unknown_.empty()) {
        unknown_.pop_front();
        continue;
      }
      timespec pause{0, 10'000'000};
      nanosleep(&pause, nullptr);
      return;
    }
    if (unknown_.size() >= kMostUnknown) unknown_.pop_front();
    const int one = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close_in_children(fd.get());
    keep_alive(fd.get(), heartbeat_s_);
    unknown_.push_back(
        Unknown{std::move(fd), Handshake(Handshake::Side::kListens, token_, purpose_), after(kAnswerSeconds)});
  }
}

// kStranger also where the connection is closed, or takes too long.
Handshake::State AuthenticatedListener::go_on(Unknown& c) {
  using State = Handshake::State;
  char buffer[64];
  while (c.handshake.state() == State::kGoesOn) {
    const ssize_t n = recv(c.fd.get(), buffer, std::min(sizeof buffer, c.handshake.wanted()), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return std::chrono::steady_clock::now() < c.until ? State::kGoesOn : State::kStranger;
    if (n <= 0) return State::kStranger;
    std::string reply;
    c.handshake.take(buffer, to_size(n), &reply);
    // A few bytes into an empty buffer: they fit, or nobody reads them.
    if (!reply.empty() &&
        send(c.fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(reply.size()))
      return State::kStranger;
  }
  return c.handshake.state();
}

std::vector<AuthenticatedListener::Connection> AuthenticatedListener::take() {
  for (auto& socket : sockets_) accept_from(socket.get());
  std::vector<Connection> known;
  for (auto it = unknown_.begin(); it != unknown_.end();) {
    const auto state = go_on(*it);
    if (state == Handshake::State::kGoesOn) {
      ++it;
      continue;
    }
    refused_ += state == Handshake::State::kRefused;
    if (state == Handshake::State::kDone) {
      Connection connection;
      connection.fd = std::move(it->fd);
      connection.from = it->handshake.from();
      known.push_back(std::move(connection));
    }
    it = unknown_.erase(it);
  }
  return known;
}

}  // namespace holon::comm
