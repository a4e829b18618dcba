#include "holon/comm/bootstrap/connection.h"

#include <poll.h>

#include <algorithm>

#include "holon/base/blocking.h"
#include "holon/base/index.h"

namespace holon::comm {

using Clock = std::chrono::steady_clock;

Deadline after(double seconds) {
  return Clock::now() +
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e8)));
}

void look_at_host_language() {
  if (auto poll = blocking_hooks().poll) poll();
}

bool wait_ready(int fd, short events, Deadline until, const WhileWaiting& waiting) {
  for (;;) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd p{fd, events, 0};
    if (::poll(&p, 1, static_cast<int>(std::min<int64_t>(left, 100))) > 0) return true;
    waiting();
  }
}

namespace {

// Waits for readiness. On a connection that is slow but never silent it is `waiting`'s turn, too.
class Waiter {
 public:
  Waiter(int fd, short events, Deadline until, const WhileWaiting& waiting)
      : fd_(fd), events_(events), until_(until), waiting_(waiting) {}
  bool operator()() {
    if (!wait_ready(fd_, events_, until_, waiting_)) return false;
    if (Clock::now() < next_) return true;
    waiting_();
    next_ = Clock::now() + std::chrono::milliseconds(100);
    return true;
  }

 private:
  const int fd_;
  const short events_;
  const Deadline until_;
  const WhileWaiting& waiting_;
  Deadline next_ = Clock::now() + std::chrono::milliseconds(100);
};

}  // namespace

Io read_all(int fd, void* to, size_t size, Deadline until, const WhileWaiting& waiting) {
  auto* at = static_cast<char*>(to);
  Waiter wait(fd, POLLIN, until, waiting);
  while (size) {
    ssize_t n = recv(fd, at, size, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return Io::kClosed;
    if (n > 0) at += n, size -= to_size(n);
    if (n < 0 && !wait()) return Io::kLate;
  }
  return Io::kDone;
}

Io write_all(int fd, const void* from, size_t size, Deadline until, const WhileWaiting& waiting) {
  const auto* at = static_cast<const char*>(from);
  Waiter wait(fd, POLLOUT, until, waiting);
  while (size) {
    ssize_t n = send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) return Io::kClosed;
    if (n > 0) at += n, size -= to_size(n);
    if (n < 0 && !wait()) return Io::kLate;
  }
  return Io::kDone;
}

Fd connect_once(const Address& address, Deadline until, const WhileWaiting& waiting) {
  Fd fd = start_connect(address);
  if (!fd) return fd;
  errno = wait_ready(fd.get(), POLLOUT, until, waiting) ? connect_error(fd.get()) : ETIMEDOUT;
  return errno ? Fd() : std::move(fd);
}

Handshake::State greet(int fd, const std::string& token, const std::string& purpose, uint32_t from, Deadline until,
                       const WhileWaiting& waiting) {
  Handshake handshake(Handshake::Side::kConnects, token, purpose, from);
  std::string out = handshake.begin();
  char buffer[64];
  while (write_all(fd, out.data(), out.size(), until, waiting) == Io::kDone) {
    out.clear();
    if (handshake.wanted() == 0 || !wait_ready(fd, POLLIN, until, waiting)) break;
    ssize_t n = recv(fd, buffer, std::min(sizeof buffer, handshake.wanted()), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (n > 0) handshake.take(buffer, to_size(n), &out);
  }
  return handshake.state();
}

}  // namespace holon::comm
