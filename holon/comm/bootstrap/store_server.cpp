#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <climits>
#include <deque>
#include <map>
#include <memory>

#include "holon/base/index.h"
#include "holon/comm/bootstrap/handshake.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"
#include "holon/comm/bootstrap/store.h"

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxConnections = 1 << 16;
constexpr int kAtOnce = 64;          // connections accepted before the others are served
constexpr size_t kMaxUnknown = 256;  // connections that have not shown the token
constexpr size_t kMaxWaiters = 1 << 16;
constexpr size_t kMaxUnsent = 128 << 20;  // bytes for one client that does not read
constexpr int kSendBuffer = 64 << 10;     // bytes that the system keeps for each client: by itself it keeps megabytes
constexpr size_t kMaxStoredBytes = 64 << 20;
constexpr auto kHelloTime = std::chrono::seconds(10);

template <class T>
std::optional<T> to_number(const std::string& s) {
  T v{};
  auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), v);
  if (error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return v;
}

}  // namespace

std::string store_body(uint8_t first, std::span<const std::string> fields) {
  std::string body(1, static_cast<char>(first));
  for (const std::string& f : fields) {
    put_u32(body, static_cast<uint32_t>(f.size()));
    body += f;
  }
  return body;
}

// The server's thread: one epoll over all connections. Nothing that a client sends can make it throw or grow without
// limit.
class StoreServer::Loop {
 public:
  Loop(std::vector<Fd> listeners, std::string token)
      : listeners_(std::move(listeners)),
        token_(std::move(token)),
        stop_(eventfd(0, EFD_CLOEXEC)),
        ready_(epoll_create1(EPOLL_CLOEXEC)) {
    bool watched = stop_ && ready_ && watch(stop_.get(), 0, EPOLL_CTL_ADD, EPOLLIN);
    for (const Fd& listener : listeners_) {
      close_in_children(listener.get());
      watched = watched && watch(listener.get(), next_id_++, EPOLL_CTL_ADD, EPOLLIN);
    }
    if (!watched) fail_runtime("the store cannot wait for its clients: {}.", strerror(errno));
  }

  void stop() {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t n = write(stop_.get(), &one, sizeof one);
  }

  void run() {
    epoll_event ready[256];
    for (;;) {
      const int n = epoll_wait(ready_.get(), ready, std::size(ready), wait_ms());
      if (n < 0 && errno != EINTR) return;
      for (int i = 0; i < n; ++i) {
        const uint64_t id = ready[i].data.u64;
        if (id == 0) return say_goodbye();
        if (id <= listeners_.size()) {
          for (int k = 0; k < kAtOnce && accept_one(listeners_[id - 1].get()); ++k) {
          }
        } else if (auto c = connections_.find(id); c != connections_.end() && !serve(id, c->second, ready[i].events)) {
          drop(id);
        }
      }
      expire();
    }
  }

  std::optional<std::string> peek(const std::string& key) const {
    std::lock_guard lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

 private:
  struct Connection {
    Fd fd;
    uint64_t id = 0;
    std::optional<Handshake> handshake;  // until the client has shown that it knows the token
    std::string in;
    // What is to be sent. What all are told, a complete gathering of thousands of ranks, is kept once.
    std::deque<std::shared_ptr<const std::string>> out;
    size_t sent = 0;    // of out.front()
    size_t unsent = 0;  // bytes
    bool waits_to_send = false;
    std::string will_key, will;  // what is set when it ends
    Clock::time_point since = Clock::now();
    bool known() const { return !handshake; }
  };
  struct Waiter {
    uint64_t connection;
    std::string key;
    int index;  // of a gathering; -1: a get
    Clock::time_point until;
  };
  struct Gathering {
    int count;
    int first_index;
    std::map<int, std::string> values;
    std::map<int, uint64_t> holders;        // connections, until it is complete
    std::vector<std::string> other_counts;  // set: it has failed
    std::vector<std::string> left;          // the same: who will not come, and why
    bool complete() const { return static_cast<int>(values.size()) == count; }
  };

  bool watch(int fd, uint64_t id, int what, uint32_t events) {
    epoll_event e{};
    e.events = events;
    e.data.u64 = id;
    return epoll_ctl(ready_.get(), what, fd, &e) == 0;
  }
  bool watch(Connection& c, uint32_t events) {
    c.waits_to_send = events & EPOLLOUT;
    return watch(c.fd.get(), c.id, EPOLL_CTL_MOD, events);
  }

  int wait_ms() const {
    auto next = Clock::time_point::max();
    for (auto& w : waiters_) next = std::min(next, w.until);
    for (auto& [id, c] : connections_)
      if (!c.known()) next = std::min(next, c.since + kHelloTime);
    if (next == Clock::time_point::max()) return -1;
    auto ms = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
  }

  // Strangers must not keep ranks out: where there are too many of them, or no descriptor is left, the oldest goes.
  // False: nobody waits at the door, or nobody more can be let in.
  bool accept_one(int listener) {
    Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EMFILE || errno == ENFILE) && !drop_oldest_unknown()) {
      // Nobody can be let go; the ones that wait at the door are asked again in a moment.
      timespec pause{0, 10'000'000};
      nanosleep(&pause, nullptr);
    }
    if (!fd) return false;
    if (unknown() >= kMaxUnknown || connections_.size() >= kMaxConnections) drop_oldest_unknown();
    if (connections_.size() >= kMaxConnections) return true;
    int one = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
    close_in_children(fd.get());
    keep_alive(fd.get(), heartbeat_s_);
    if (!watch(fd.get(), next_id_, EPOLL_CTL_ADD, EPOLLIN)) return true;
    Connection& c = connections_[next_id_];
    c.id = next_id_++;
    c.fd = std::move(fd);
    c.handshake.emplace(Handshake::Side::kListens, token_, kStorePurpose);
    return true;
  }

  size_t unknown() const {
    return to_size(
        std::count_if(connections_.begin(), connections_.end(), [](const auto& c) { return !c.second.known(); }));
  }

  bool drop_oldest_unknown() {
    auto oldest =
        std::find_if(connections_.begin(), connections_.end(), [](const auto& c) { return !c.second.known(); });
    if (oldest == connections_.end()) return false;
    drop(oldest->first);
    return true;
  }

  // False: the connection is to be dropped.
  bool serve(uint64_t id, Connection& c, uint32_t events) {
    if (events & EPOLLOUT && !flush(c)) return false;
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return true;
    char buffer[65536];
    ssize_t n = read(c.fd.get(), buffer, c.known() ? sizeof buffer : c.handshake->wanted());
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (n < 0) return true;
    if (!c.known()) return greet(c, buffer, to_size(n));
    c.in.append(buffer, to_size(n));
    while (c.in.size() >= 4) {
      uint32_t size = get_u32(c.in.data());
      if (size == 0 || size > kStoreMaxFrame) return false;
      if (c.in.size() < 4 + size) break;
      std::string body = c.in.substr(4, size);
      c.in.erase(0, 4 + size);
      if (!request(id, c, body)) return false;
    }
    return true;
  }

  bool greet(Connection& c, const char* data, size_t size) {
    std::string answer;
    auto state = c.handshake->take(data, size, &answer);
    if (!answer.empty()) push(c, std::make_shared<const std::string>(std::move(answer)));
    if (!flush(c) || (state != Handshake::State::kDone && state != Handshake::State::kGoesOn)) return false;
    if (state == Handshake::State::kGoesOn) return true;
    c.handshake.reset();
    const Address here = local_address(c.fd.get());
    if (!here.loopback() && here.ip() != peer_address(c.fd.get()).ip() && !peek(kStoreReachedAt))
      store(kStoreReachedAt, here.ip());
    return true;
  }

  bool request(uint64_t id, Connection& c, const std::string& body) {
    std::vector<std::string> f;
    for (size_t at = 1; at < body.size();) {
      if (body.size() - at < 4) return false;
      uint32_t size = get_u32(body.data() + at);
      if (size > body.size() - at - 4) return false;
      f.push_back(body.substr(at + 4, size));
      at += 4 + size;
    }
    auto op = static_cast<StoreOp>(body[0]);
    switch (op) {
      case StoreOp::kSet: return f.size() == 2 && set(c, f[0], f[1]);
      case StoreOp::kGet: return f.size() == 2 && get(id, c, f[0], to_number<int64_t>(f[1]));
      case StoreOp::kAdd: return f.size() == 2 && add(c, f[0], to_number<int64_t>(f[1]));
      case StoreOp::kGather:
        return f.size() == 5 &&
            gather(id, c, f[0], to_number<int>(f[1]), to_number<int>(f[2]), f[3], to_number<int64_t>(f[4]));
      case StoreOp::kWill:
        if (f.size() != 2 || f[0].size() + f[1].size() > kStoreMaxWill) return false;
        c.will_key = f[0], c.will = f[1];
        return reply(c, StoreStatus::kOk, {});
      case StoreOp::kLeave: return f.size() == 3 && leave(c, f[0], to_number<int>(f[1]), f[2]);
      default: return false;
    }
  }

  bool store(const std::string& key, const std::string& value) {
    if (stored_bytes_ + key.size() + value.size() > kMaxStoredBytes) return false;
    stored_bytes_ += key.size() + value.size();
    std::lock_guard lock(mutex_);
    auto& slot = values_[key];
    stored_bytes_ -= slot.size();
    slot = value;
    return true;
  }

  bool set(Connection& c, const std::string& key, const std::string& value) {
    if (!store(key, value)) return reply(c, StoreStatus::kError, {"the store is full"});
    answer_gets(key, value);
    return reply(c, StoreStatus::kOk, {});
  }

  void answer_gets(const std::string& key, const std::string& value) {
    std::erase_if(waiters_, [&](const Waiter& w) {
      if (w.index >= 0 || w.key != key) return false;
      reply(connections_[w.connection], StoreStatus::kOk, {value});
      return true;
    });
  }

  bool get(uint64_t id, Connection& c, const std::string& key, std::optional<int64_t> ms) {
    if (!ms || *ms < 0) return false;
    if (auto value = peek(key)) return reply(c, StoreStatus::kOk, {*value});
    if (waiters_.size() >= kMaxWaiters) return reply(c, StoreStatus::kError, {"too many clients are waiting already"});
    waiters_.push_back({id, key, -1, deadline(*ms)});
    return true;
  }

  bool add(Connection& c, const std::string& key, std::optional<int64_t> amount) {
    if (!amount) return false;
    auto before = to_number<int64_t>(peek(key).value_or("0"));
    if (!before) return reply(c, StoreStatus::kError, {"the value of \"" + key + "\" is not a number"});
    std::string sum =
        std::to_string(static_cast<int64_t>(static_cast<uint64_t>(*before) + static_cast<uint64_t>(*amount)));
    if (!store(key, sum)) return reply(c, StoreStatus::kError, {"the store is full"});
    answer_gets(key, sum);
    return reply(c, StoreStatus::kOk, {sum});
  }

  bool gather(uint64_t id, Connection& c, const std::string& key, std::optional<int> index, std::optional<int> count,
              const std::string& value, std::optional<int64_t> ms) {
    if (!index || !count || !ms || *count < 1 || *count > 1'000'000 || *index < 0 || *index >= *count || *ms < 0)
      return false;
    if (waiters_.size() >= kMaxWaiters) return reply(c, StoreStatus::kError, {"too many clients are waiting already"});
    auto [it, fresh] = gatherings_.try_emplace(key, Gathering{*count, *index, {}, {}, {}, {}});
    if (fresh) stored_bytes_ += key.size() + sizeof(Gathering);
    Gathering& g = it->second;
    if (!g.left.empty()) return reply(c, StoreStatus::kLeft, g.left);
    if (g.other_counts.empty() && g.count != *count) {
      // One side is wrong, and nobody can tell which: all that wait here hear of it. What is complete is left in peace.
      std::vector<std::string> both = {"rank " + std::to_string(g.first_index) + " of " + std::to_string(g.count),
                                       "rank " + std::to_string(*index) + " of " + std::to_string(*count)};
      if (g.complete()) return reply(c, StoreStatus::kOtherCount, both);
      g.other_counts = both;
      tell_gathered(key, StoreStatus::kOtherCount, both);
    }
    if (!g.other_counts.empty()) return reply(c, StoreStatus::kOtherCount, g.other_counts);
    if (auto held = g.values.find(*index); held != g.values.end()) return reply(c, StoreStatus::kTaken, {held->second});
    if (stored_bytes_ + value.size() > kMaxStoredBytes) return reply(c, StoreStatus::kError, {"the store is full"});
    stored_bytes_ += value.size();
    g.values[*index] = value;
    g.holders[*index] = id;
    waiters_.push_back({id, key, *index, deadline(*ms)});
    if (!g.complete()) return true;
    std::vector<std::string> all;
    for (auto& [i, v] : g.values) all.push_back(v);
    g.holders.clear();
    tell_gathered(key, StoreStatus::kOk, all);
    return true;
  }

  // Nobody has to be there yet. What is complete is left in peace.
  bool leave(Connection& c, const std::string& key, std::optional<int> index, const std::string& reason) {
    if (!index || *index < 0) return false;
    if (stored_bytes_ + key.size() + reason.size() + sizeof(Gathering) > kMaxStoredBytes)
      return reply(c, StoreStatus::kError, {"the store is full"});
    auto [it, fresh] = gatherings_.try_emplace(key, Gathering{0, *index, {}, {}, {}, {}});
    if (fresh) stored_bytes_ += key.size() + sizeof(Gathering);
    Gathering& g = it->second;
    if ((fresh || !g.complete()) && g.left.empty()) {
      stored_bytes_ += reason.size();
      g.left = {std::to_string(*index), reason};
      tell_gathered(key, StoreStatus::kLeft, g.left);
    }
    return reply(c, StoreStatus::kOk, {});
  }

  void tell_gathered(const std::string& key, StoreStatus status, const std::vector<std::string>& fields) {
    const auto framed = frame(status, fields);
    std::erase_if(waiters_, [&](const Waiter& w) {
      if (w.index < 0 || w.key != key) return false;
      send_frame(connections_[w.connection], framed);
      return true;
    });
  }

  // A server that ends in order says so to all, those who wait for a key and those whose next request comes too late;
  // who hears nothing knows that it was killed.
  void say_goodbye() {
    std::erase_if(waiters_, [](const Waiter& w) { return w.index < 0; });
    for (auto& [id, c] : connections_) {
      const bool gathers =
          std::any_of(waiters_.begin(), waiters_.end(), [&, id = id](const Waiter& w) { return w.connection == id; });
      if (c.known() && !gathers) reply(c, StoreStatus::kTimeout, {});
    }
  }

  static Clock::time_point deadline(int64_t ms) {
    return Clock::now() + std::chrono::milliseconds(std::min<int64_t>(ms, int64_t{1} << 40));
  }

  static std::shared_ptr<const std::string> frame(StoreStatus status, const std::vector<std::string>& fields) {
    const std::string body = store_body(static_cast<uint8_t>(status), fields);
    auto framed = std::make_shared<std::string>();
    framed->reserve(body.size() + 4);
    put_u32(*framed, static_cast<uint32_t>(body.size()));
    *framed += body;
    return framed;
  }

  static void push(Connection& c, std::shared_ptr<const std::string> bytes) {
    c.unsent += bytes->size();
    c.out.push_back(std::move(bytes));
  }

  bool reply(Connection& c, StoreStatus status, const std::vector<std::string>& fields) {
    return send_frame(c, frame(status, fields));
  }

  bool send_frame(Connection& c, std::shared_ptr<const std::string> framed) {
    push(c, std::move(framed));
    return flush(c) && c.unsent <= kMaxUnsent;
  }

  bool flush(Connection& c) {
    while (!c.out.empty()) {
      const std::string& bytes = *c.out.front();
      const ssize_t n = send(c.fd.get(), bytes.data() + c.sent, bytes.size() - c.sent, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (n < 0) break;
      c.sent += to_size(n), c.unsent -= to_size(n);
      if (c.sent < bytes.size()) continue;
      c.out.pop_front();
      c.sent = 0;
    }
    return c.waits_to_send == !c.out.empty() || watch(c, c.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);
  }

  void expire() {
    auto now = Clock::now();
    // Who waits in a gathering that one participant gives up cannot succeed either.
    std::vector<std::string> given_up;
    for (auto& w : waiters_)
      if (w.until <= now && w.index >= 0) given_up.push_back(w.key);
    std::erase_if(waiters_, [&](const Waiter& w) {
      bool with_others = w.index >= 0 && std::find(given_up.begin(), given_up.end(), w.key) != given_up.end();
      if (w.until > now && !with_others) return false;
      std::vector<std::string> missing;
      if (w.index >= 0) {
        Gathering& g = gatherings_.at(w.key);
        for (int i = 0; i < g.count && missing.size() < 64; ++i)
          if (!g.values.contains(i)) missing.push_back(std::to_string(i));
      }
      reply(connections_[w.connection], StoreStatus::kTimeout, missing);
      return true;
    });
    std::vector<uint64_t> silent;
    for (auto& [id, c] : connections_)
      if (!c.known() && c.since + kHelloTime <= now) silent.push_back(id);
    for (uint64_t id : silent) drop(id);
  }

  // A participant that leaves before a gathering is complete makes room for another try.
  void drop(uint64_t id) {
    std::erase_if(waiters_, [&](const Waiter& w) { return w.connection == id; });
    for (auto& [key, g] : gatherings_)
      std::erase_if(g.holders, [&, &g = g](const auto& holder) {
        if (holder.second != id) return false;
        g.values.erase(holder.first);
        return true;
      });
    auto gone = connections_.extract(id);
    // Not by closing it alone: while a forked process still has a copy, the connection would stay in the set.
    if (!gone.empty()) epoll_ctl(ready_.get(), EPOLL_CTL_DEL, gone.mapped().fd.get(), nullptr);
    if (gone.empty() || gone.mapped().will_key.empty()) return;
    const auto& [key, value] = std::pair(gone.mapped().will_key, gone.mapped().will);
    if (!peek(key) && store(key, value)) answer_gets(key, value);
  }

  std::vector<Fd> listeners_;
  const std::string token_;
  Fd stop_, ready_;
  const double heartbeat_s_ = heartbeat_limit_s();
  uint64_t next_id_ = 1;
  std::map<uint64_t, Connection> connections_;
  std::vector<Waiter> waiters_;
  std::map<std::string, Gathering> gatherings_;
  size_t stored_bytes_ = 0;
  mutable std::mutex mutex_;  // of values_, for peek()
  std::map<std::string, std::string> values_;
};

StoreServer::StoreServer(const std::string& host, int port, std::string token)
    : StoreServer(resolve_within(host, port, 0), std::move(token)) {}

StoreServer::StoreServer(const std::vector<Address>& at, std::string token) {
  std::vector<Fd> listeners;
  for (Address address : at) {
    if (!listeners.empty()) address.set_port(port_);
    Fd fd = listen_tcp(address);
    // Not every machine speaks IPv6; "all addresses" are then those of IPv4.
    if (!fd && errno != EADDRINUSE && address.ip() == "::") {
      address = resolve_within("0.0.0.0", address.port(), 0)[0];
      fd = listen_tcp(address);
    }
    if (!fd && errno == EADDRINUSE)
      fail_runtime("port {} of {} is in use by another program, or by an earlier run of this one. Choose another port "
                   "with MASTER_PORT (the launcher's --master_port), on all ranks.",
                   address.port(), address.ip());
    if (!fd)
      fail_runtime("the store cannot listen at {}: {}. Set MASTER_ADDR and MASTER_PORT to an address of this machine.",
                   address.str(), strerror(errno));
    port_ = local_address(fd.get()).port();
    listeners.push_back(std::move(fd));
  }
  loop_ = std::make_unique<Loop>(std::move(listeners), std::move(token));
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { loop_->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StoreServer::~StoreServer() {
  if (mark_.inherited()) {  // the thread is the parent's, and so is what wakes it
    (void)loop_.release();
    new std::thread(std::move(thread_));
    return;
  }
  loop_->stop();
  thread_.join();
}

std::optional<std::string> StoreServer::peek(const std::string& key) const { return loop_->peek(key); }

}  // namespace holon::comm
