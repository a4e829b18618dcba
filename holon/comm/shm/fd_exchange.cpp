#include "holon/comm/shm/fd_exchange.h"

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>

#include "holon/base/blocking.h"

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kMagic = 0x484c6664;
constexpr size_t kFdsPerMessage = 200;  // the kernel takes 253

struct Note {
  uint32_t magic;
  int32_t rank;  // to the leader: whose descriptor; from it: unused
};

socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  name.copy(address->sun_path + 1, sizeof address->sun_path - 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool send_fds(int socket, Note note, const int* fds, size_t count) {
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))] = {};
  iovec io{&note, sizeof note};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(count * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds, count * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof note);
}

// False: the other side has closed or speaks something else.
bool receive_fds(int socket, Note* note, std::vector<Fd>* fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))];
  iovec io{note, sizeof *note};
  msghdr message{};
  message.msg_iov = &io;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (n < 0) return false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds->emplace_back(fd);
    }
  }
  return n == static_cast<ssize_t>(sizeof *note) && note->magic == kMagic && !(message.msg_flags & MSG_CTRUNC);
}

bool same_user(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid();
}

int slice_ms(Clock::time_point until) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 100));
}

Clock::time_point after(double seconds) {
  return Clock::now() +
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e8)));
}

}  // namespace

FdListener::FdListener() {
  uint64_t random[2] = {};
  if (getrandom(random, sizeof random, 0) != sizeof random)
    fail_runtime("the system gives no random numbers: {}.", strerror(errno));
  name_ = fmt::format("holon-{:016x}{:016x}", random[0], random[1]);
  fd_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  socklen_t size = abstract_address(name_, &address);
  if (!fd_ || bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd_.get(), 4096) != 0)
    fail_runtime("a Unix socket between the ranks cannot be made: {}.", strerror(errno));
}

Watched Watched::open(int pid) {
  Watched w;
  w.pid = pid;
  w.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  return w;
}

bool Watched::gone() const {
  if (pidfd) {
    pollfd p{pidfd.get(), POLLIN, 0};
    return poll(&p, 1, 0) > 0;
  }
  // No pidfd (an old kernel, or the process was gone before it could be opened).
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(stat, text)) return kill(pid, 0) != 0 && errno == ESRCH;
  auto name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() &&
      (text[name_end + 2] == 'Z' || text[name_end + 2] == 'X');
}

std::vector<Fd> lead_exchange(const FdListener& listener, int my_fd, int extra, const std::vector<Watched>& ranks,
                              double timeout_s) {
  const auto until = after(timeout_s);
  std::vector<Fd> sockets(ranks.size()), fds(ranks.size());
  fds[0] = Fd(fcntl(my_fd, F_DUPFD_CLOEXEC, 0));
  for (size_t left = ranks.size() - 1; left > 0;) {
    std::vector<pollfd> polled = {{listener.fd(), POLLIN, 0}};
    for (size_t r = 1; r < ranks.size(); ++r)
      if (!sockets[r] && ranks[r].pidfd) polled.push_back({ranks[r].pidfd.get(), POLLIN, 0});
    poll(polled.data(), polled.size(), slice_ms(until));
    if (auto p = blocking_hooks().poll) p();
    if (polled[0].revents) {
      Fd socket(accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!socket || !same_user(socket.get())) continue;
      pollfd ready{socket.get(), POLLIN, 0};
      Note note{};
      std::vector<Fd> got;
      if (poll(&ready, 1, 1000) <= 0 || !receive_fds(socket.get(), &note, &got) || got.size() != 1) continue;
      if (note.rank < 1 || note.rank >= static_cast<int>(ranks.size()) || sockets[static_cast<size_t>(note.rank)])
        continue;
      sockets[static_cast<size_t>(note.rank)] = std::move(socket);
      fds[static_cast<size_t>(note.rank)] = std::move(got[0]);
      --left;
      continue;
    }
    for (size_t r = 1; r < ranks.size(); ++r) {
      if (sockets[r]) continue;
      if (ranks[r].gone())
        fail_runtime("rank {} (process {}) has ended while the world came together. Read its output first.", r,
                     ranks[r].pid);
      if (Clock::now() > until)
        fail_runtime("rank {} (process {}) has met the others but does not go on. Read its output first.", r,
                     ranks[r].pid);
    }
  }
  std::vector<int> all = {extra};
  for (Fd& fd : fds) all.push_back(fd.get());
  for (size_t r = 1; r < ranks.size(); ++r)
    for (size_t at = 0; at < all.size(); at += kFdsPerMessage)
      if (!send_fds(sockets[r].get(), {kMagic, 0}, all.data() + at, std::min(kFdsPerMessage, all.size() - at)))
        fail_runtime("rank {} (process {}) has ended while the world came together. Read its output first.", r,
                     ranks[r].pid);
  return fds;
}

std::vector<Fd> join_exchange(const std::string& leader_name, int rank, int my_fd, size_t count, Fd* extra,
                              const Watched& leader, double timeout_s) {
  const auto until = after(timeout_s);
  auto leader_gone = [&] {
    fail_runtime("rank 0 (process {}) has ended while the world came together. Read its output first.", leader.pid);
  };
  Fd s(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  socklen_t size = abstract_address(leader_name, &address);
  if (!s || connect(s.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (leader.gone()) leader_gone();
    fail_runtime("rank {} cannot reach rank 0's Unix socket: {}. Ranks of one host share its network namespace.", rank,
                 strerror(errno));
  }
  if (!same_user(s.get())) fail_runtime("rank 0 belongs to another user; start all ranks as the same one.");
  if (!send_fds(s.get(), {kMagic, rank}, &my_fd, 1)) leader_gone();
  std::vector<Fd> fds;
  while (fds.size() < count + 1) {
    pollfd p{s.get(), POLLIN, 0};
    if (poll(&p, 1, slice_ms(until)) <= 0) {
      if (auto hook = blocking_hooks().poll) hook();
      if (Clock::now() > until)
        fail_runtime("rank 0 (process {}) has met the others but does not go on. Read its output first.", leader.pid);
      continue;
    }
    Note note{};
    size_t before = fds.size();
    if (!receive_fds(s.get(), &note, &fds) || fds.size() == before) leader_gone();
  }
  *extra = std::move(fds[0]);
  fds.erase(fds.begin());
  return fds;
}

}  // namespace holon::comm
