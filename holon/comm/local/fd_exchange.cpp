#include "holon/comm/local/fd_exchange.h"

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <fstream>

#include "holon/base/blocking.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;
constexpr uint32_t kMagic = 0x484c6664;
constexpr size_t kFdsPerMessage = 200;  // the kernel takes 253

constexpr size_t kReasonBytes = 512;
constexpr double kEndSeconds = 1;  // between the end of a process's sockets and its own, on a busy machine

struct Note {
  uint32_t magic;
  // To the leader: at first the sender's place, then how many descriptors it has taken. From the leader: 0, or
  // kGivesUp, and behind it the reason.
  int32_t number;
};
constexpr int32_t kGivesUp = -1;

socklen_t abstract_address(const std::string& name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  name.copy(address->sun_path + 1, sizeof address->sun_path - 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// 0, or errno.
int send_fds(int socket, Note note, const int* fds, size_t count, std::string_view reason = {}) {
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))] = {};
  reason = reason.substr(0, kReasonBytes);
  iovec io[] = {{&note, sizeof note}, {const_cast<char*>(reason.data()), reason.size()}};
  msghdr message{};
  message.msg_iov = io;
  message.msg_iovlen = std::size(io);
  if (count) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds, count * sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(sizeof note + reason.size())
      ? 0
      : errno;
}

// Whether a message cannot be sent for the moment only: the other side has to read first, or somebody else, as the
// system limits how many descriptors of a user are on their way.
bool may_pass(int error) { return error == EAGAIN || error == ETOOMANYREFS || error == ENOBUFS || error == EINTR; }

enum class Got { kMessage, kNothing, kClosed, kNoRoom, kReason };

// reason: filled where it returns kReason.
Got receive_fds(int socket, Note* note, std::vector<Fd>* fds, std::string* reason) {
  alignas(cmsghdr) char control[CMSG_SPACE(kFdsPerMessage * sizeof(int))];
  char text[kReasonBytes];
  iovec io[] = {{note, sizeof *note}, {text, sizeof text}};
  msghdr message{};
  ssize_t n = 0;
  bool again = true;
  // The system may tell of a message that is followed by the end as of the end alone: looked at again, it is there.
  for (int look = 0; look < 2 && again; ++look) {
    message = {};
    message.msg_iov = io;
    message.msg_iovlen = std::size(io);
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    again = n == 0 || (n < 0 && errno == ECONNRESET);
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Got::kNothing;
  if (n < 0) return Got::kClosed;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      fds->emplace_back(fd);
    }
  }
  if (n < static_cast<ssize_t>(sizeof *note) || note->magic != kMagic) return Got::kClosed;
  const size_t length = to_size(n) - sizeof *note;
  if (note->number == kGivesUp && length > 0) {
    if (reason) reason->assign(text, length);
    return Got::kReason;
  }
  if (length > 0) return Got::kClosed;
  return message.msg_flags & MSG_CTRUNC ? Got::kNoRoom : Got::kMessage;
}

[[noreturn]] void fail_without_room(int rank, size_t ranks) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  fail_runtime(
      "rank {} has no file descriptors left for the memory of {} ranks: {}; this process may have {}. `ulimit -n` "
      "raises the limit.",
      rank, ranks, strerror(EMFILE), limit.rlim_cur);
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
    fail_runtime("cannot read random numbers from the system: {}.", strerror(errno));
  name_ = fmt::format("holon-{:016x}{:016x}", random[0], random[1]);
  fd_ = Fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  socklen_t size = abstract_address(name_, &address);
  if (!fd_ || bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd_.get(), 4096) != 0)
    fail_runtime("cannot create a Unix socket between the ranks: {}.", strerror(errno));
}

Watched Watched::open(int pid, int rank) {
  Watched w;
  w.pid = pid;
  w.rank = rank;
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

namespace {

[[noreturn]] void fail_gone(const Watched& rank) {
  fail_runtime("rank {} (process {}) has ended while the world was forming. Read its output first.", rank.rank,
               rank.pid);
}

// A process's sockets close before the process is gone: whoever looks for the cause after this one shall find it gone.
[[noreturn]] void fail_closed(const Watched& rank) {
  for (const auto until = after(kEndSeconds); !rank.gone() && Clock::now() < until;) poll(nullptr, 0, 1);
  fail_gone(rank);
}

[[noreturn]] void fail_with(const Watched& leader, const std::string& reason) {
  fail_runtime("rank {} has failed while the world was forming: {}", leader.rank, reason);
}

[[noreturn]] void fail_late(const Watched& rank, int error) {
  fail_runtime("rank {} (process {}) has joined the others but does not continue{}. Read its output first.", rank.rank,
               rank.pid, error ? fmt::format(" ({})", strerror(error)) : "");
}

// The leader's side: one poll() over all the others, each of which is somewhere between coming and having all.
class Lead {
 public:
  Lead(const FdListener& listener, int my_fd, int extra, const std::vector<Watched>& ranks)
      : listener_(listener), ranks_(ranks), peers_(ranks.size()), fds_(ranks.size()), all_{extra} {
    fds_[0] = Fd(fcntl(my_fd, F_DUPFD_CLOEXEC, 0));
    if (!fds_[0]) fail_without_room(ranks[0].rank, ranks.size());
  }

  std::vector<Fd> run(double timeout_s) {
    const auto until = after(timeout_s);
    try {
      while (come_ < ranks_.size()) turn(until);
      for (Fd& fd : fds_) all_.push_back(fd.get());
      while (done_ < ranks_.size()) turn(until);
    } catch (const std::exception& e) {
      tell(e.what());
      throw;
    }
    return std::move(fds_);
  }

 private:
  struct Peer {
    Fd socket;
    size_t sent = 0, taken = 0;  // of all_
  };

  // The others would take the leader, whose sockets close now, for the cause.
  void tell(std::string_view reason) {
    accept_all();
    for (Fd& s : strangers_) send_fds(s.get(), {kMagic, kGivesUp}, nullptr, 0, reason);
    for (Peer& p : peers_)
      if (p.socket && !has_all(p)) send_fds(p.socket.get(), {kMagic, kGivesUp}, nullptr, 0, reason);
  }

  void accept_all() {
    for (Fd socket; (socket = Fd(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));)
      if (same_user(socket.get())) strangers_.push_back(std::move(socket));
  }

  void turn(Clock::time_point until) {
    std::vector<pollfd> polled = {{listener_.fd(), POLLIN, 0}};
    for (Fd& s : strangers_) polled.push_back({s.get(), POLLIN, 0});
    for (size_t r = 1; r < ranks_.size(); ++r) {
      if (has_all(peers_[r])) continue;
      if (ranks_[r].pidfd) polled.push_back({ranks_[r].pidfd.get(), POLLIN, 0});
      if (peers_[r].socket) polled.push_back({peers_[r].socket.get(), POLLIN, 0});
    }
    if (come_ == ranks_.size()) send_more();
    poll(polled.data(), polled.size(), std::min(error_ ? kAgainMs : slice_ms(until), slice_ms(until)));
    if (auto p = blocking_hooks().poll) p();
    accept_all();
    if (errno == EMFILE || errno == ENFILE) fail_without_room(ranks_[0].rank, ranks_.size());
    std::erase_if(strangers_, [&](Fd& s) { return introduced(s); });
    for (size_t r = 1; r < ranks_.size(); ++r) look_at(r, until);
  }

  // True: it need not be asked again.
  bool introduced(Fd& socket) {
    Note note{};
    std::vector<Fd> got;
    switch (receive_fds(socket.get(), &note, &got, nullptr)) {
      case Got::kNothing: return false;
      case Got::kClosed:
      case Got::kReason: return true;
      case Got::kNoRoom: fail_without_room(ranks_[0].rank, ranks_.size());
      case Got::kMessage: break;
    }
    const auto r = to_size(note.number);
    if (got.size() != 1 || r < 1 || r >= ranks_.size() || peers_[r].socket) return true;
    peers_[r].socket = std::move(socket);
    fds_[r] = std::move(got[0]);
    ++come_;
    return true;
  }

  void look_at(size_t r, Clock::time_point until) {
    Peer& p = peers_[r];
    if (has_all(p)) return;
    // It says how many it has taken.
    Note note{};
    std::vector<Fd> none;
    for (Got got; p.socket && (got = receive_fds(p.socket.get(), &note, &none, nullptr)) != Got::kNothing;) {
      if (got != Got::kMessage || note.number < 0 || to_size(note.number) > p.sent) fail_closed(ranks_[r]);
      on_the_way_ -= to_size(note.number) - p.taken;
      p.taken = to_size(note.number);
      if (has_all(p)) {
        ++done_;
        return;
      }
    }
    if (ranks_[r].gone()) fail_gone(ranks_[r]);
    if (Clock::now() > until) fail_late(ranks_[r], error_);
  }

  bool has_all(const Peer& p) const { return all_.size() > 1 && p.taken == all_.size(); }

  // The system limits how many descriptors a user may have on their way: few at a time, whatever the number of ranks.
  void send_more() {
    error_ = 0;
    for (size_t r = 1; r < ranks_.size() && error_ == 0; ++r) {
      Peer& p = peers_[r];
      while (p.sent < all_.size() && error_ == 0) {
        const size_t n = std::min(kFdsPerMessage, all_.size() - p.sent);
        if (on_the_way_ > 0 && on_the_way_ + n > kMostOnTheWay) return;
        error_ = send_fds(p.socket.get(), {kMagic, 0}, all_.data() + p.sent, n);
        if (error_ && !may_pass(error_)) fail_closed(ranks_[r]);
        if (error_ == 0) p.sent += n, on_the_way_ += n;
      }
    }
  }

  static constexpr size_t kMostOnTheWay = 256;
  static constexpr int kAgainMs = 5;
  const FdListener& listener_;
  const std::vector<Watched>& ranks_;
  std::vector<Peer> peers_;
  std::vector<Fd> strangers_;  // that have not said who they are
  std::vector<Fd> fds_;
  std::vector<int> all_;
  size_t come_ = 1, done_ = 1, on_the_way_ = 0;
  int error_ = 0;  // why the last message could not be sent
};

}  // namespace

std::vector<Fd> lead_exchange(const FdListener& listener, int my_fd, int extra, const std::vector<Watched>& ranks,
                              double timeout_s) {
  return Lead(listener, my_fd, extra, ranks).run(timeout_s);
}

std::vector<Fd> join_exchange(const std::string& leader_name, int place, int my_fd, const std::vector<Watched>& ranks,
                              Fd* extra, double timeout_s) {
  const auto until = after(timeout_s);
  const Watched &leader = ranks[0], &me = at_index(ranks, place);
  Fd s(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!s) fail_runtime("rank {} cannot create a Unix socket: {}.", me.rank, strerror(errno));
  sockaddr_un address;
  socklen_t size = abstract_address(leader_name, &address);
  std::vector<Fd> fds;
  std::string reason;
  Note note{};
  // Tries again while it may pass, and raises when the leader is gone or the time is over.
  auto insist = [&](auto&& attempt, const char* what) {
    for (int error; (error = attempt()) != 0;) {
      // What the leader said before it closed the socket.
      for (Got got = Got::kMessage; !may_pass(error) && got == Got::kMessage;)
        if ((got = receive_fds(s.get(), &note, &fds, &reason)) == Got::kReason) fail_with(leader, reason);
      if (leader.gone()) fail_gone(leader);
      if (!may_pass(error) || Clock::now() > until) {
        // The leader may have given up because another one is gone.
        for (const Watched& other : ranks)
          if (&other != &me && other.gone()) fail_gone(other);
        fail_runtime("rank {} cannot {} rank {}'s Unix socket: {}. That rank has given up, and its output says why, or "
                     "the two are in different network namespaces, which ranks of one host must share.",
                     me.rank, what, leader.rank, strerror(error));
      }
      if (auto hook = blocking_hooks().poll) hook();
      poll(nullptr, 0, 5);
    }
  };
  insist([&] { return connect(s.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 ? 0 : errno; }, "reach");
  if (!same_user(s.get()))
    fail_runtime("rank {} belongs to another user; start all ranks as the same one.", leader.rank);
  insist([&] { return send_fds(s.get(), {kMagic, place}, &my_fd, 1); }, "write to");
  while (fds.size() < ranks.size() + 1) {
    pollfd p{s.get(), POLLIN, 0};
    if (poll(&p, 1, slice_ms(until)) <= 0) {
      if (auto hook = blocking_hooks().poll) hook();
      if (Clock::now() > until) fail_late(leader, 0);
      continue;
    }
    switch (receive_fds(s.get(), &note, &fds, &reason)) {
      case Got::kNothing: continue;
      case Got::kReason: fail_with(leader, reason);
      case Got::kClosed: fail_gone(leader);
      case Got::kNoRoom: fail_without_room(me.rank, ranks.size());
      case Got::kMessage: break;
    }
    const Note taken{kMagic, static_cast<int32_t>(fds.size())};
    insist([&] { return send_fds(s.get(), taken, nullptr, 0); }, "answer at");
  }
  *extra = std::move(fds[0]);
  fds.erase(fds.begin());
  return fds;
}

}  // namespace holon::comm
