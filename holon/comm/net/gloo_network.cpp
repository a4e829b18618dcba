// Messages over TCP, by Gloo (https://github.com/pytorch/gloo). A module that is loaded by the first world of several
// hosts: other programs pay nothing for it.

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"
#include "holon/comm/bootstrap/socket.h"
#include "holon/comm/bootstrap/store.h"
#include "holon/comm/net/network.h"
#include "holon/comm/world.h"

namespace holon::comm {

namespace {

namespace tcp = gloo::transport::tcp;
using gloo::transport::UnboundBuffer;

// Gloo writes to connections that a peer may have closed. In this scope that raises no SIGPIPE in the calling thread,
// nor in those that it starts.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    constexpr timespec kNow{0, 0};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &kNow) < 0 && errno == EINTR) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

// A thread that wakes whoever waits for Gloo, now and then, so that the waiting thread can look around: Gloo itself
// only knows one time limit, after which it closes all connections.
class Ticker {
 public:
  Ticker() : thread_([this] { run(); }) {}
  ~Ticker() {
    {
      std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  class Scope {
   public:
    Scope(Ticker& ticker, UnboundBuffer* buffer) : ticker_(ticker), buffer_(buffer) {
      std::scoped_lock lock(ticker_.mutex_);
      bool first = ticker_.waiting_.empty();
      ticker_.waiting_.push_back(buffer);
      if (first && ticker_.idle_) ticker_.changed_.notify_one();
    }
    ~Scope() {
      std::scoped_lock lock(ticker_.mutex_);
      std::erase(ticker_.waiting_, buffer_);  // other threads may wait, too
    }

   private:
    Ticker& ticker_;
    UnboundBuffer* buffer_;
  };

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      idle_ = waiting_.empty();
      if (idle_) {
        changed_.wait(lock);
        idle_ = false;
        continue;
      }
      if (changed_.wait_for(lock, std::chrono::milliseconds(50), [&] { return ended_; })) return;
      for (UnboundBuffer* b : waiting_) {
        b->abortWaitRecv();
        b->abortWaitSend();
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<UnboundBuffer*> waiting_;
  bool idle_ = false, ended_ = false;
  std::thread thread_;
};

// While ranks connect: Gloo waits for a peer to its own limit, unless its connections are closed meanwhile.
class Impatience {
 public:
  Impatience(gloo::transport::Context& context, const Network::Transit::Trouble& trouble)
      : thread_([this, &context, &trouble] {
          leave_host_language();
          for (std::unique_lock lock(mutex_); !changed_.wait_for(lock, kTick, [&] { return ended_; });) {
            if (trouble().empty()) continue;
            for (int r = 0; r < context.size; ++r)
              if (r != context.rank && context.getPair(r)) context.getPair(r)->close();
          }
        }) {}
  ~Impatience() {
    {
      std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  static constexpr auto kTick = std::chrono::milliseconds(50);
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

// A connection, as the system knows it: Gloo keeps its sockets to itself, and may close one at any time.
struct Socket {
  int rank, fd;
  ino_t inode;

  bool is_open() const {
    struct stat is {};
    return fstat(fd, &is) == 0 && S_ISSOCK(is.st_mode) && is.st_ino == inode;
  }
};

bool same_place(const sockaddr_storage& a, const sockaddr_storage& b) {
  if (a.ss_family != b.ss_family) return false;
  if (a.ss_family == AF_INET) {
    auto &x = reinterpret_cast<const sockaddr_in&>(a), &y = reinterpret_cast<const sockaddr_in&>(b);
    return x.sin_port == y.sin_port && x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  auto &x = reinterpret_cast<const sockaddr_in6&>(a), &y = reinterpret_cast<const sockaddr_in6&>(b);
  return a.ss_family == AF_INET6 && x.sin6_port == y.sin6_port && IN6_ARE_ADDR_EQUAL(&x.sin6_addr, &y.sin6_addr);
}

class GlooNetwork final : public Network {
 public:
  GlooNetwork(int rank, const Hosts& hosts, const std::string& address, StoreClient& store, double timeout_s,
              const Transit::Trouble& trouble) {
    const int size = static_cast<int>(hosts.of_rank.size());
    auto host = [&](int r) { return hosts.of_rank[static_cast<size_t>(r)]; };
    tcp::attr attr;
    attr.hostname = address;
    auto stage = fmt::format("cannot listen at {}", address);
    const auto start = std::chrono::steady_clock::now();
    auto left_s = [&] {
      return std::max(1.0, timeout_s - std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    };
    try {
      NoBrokenPipe quiet;  // its thread inherits that
      device_ = tcp::CreateDevice(attr);
      context_ = device_->createContext(rank, size);
      // Gloo waits five times as long for a connection. Waits for messages have their own limit.
      context_->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 200)));
      std::string addresses;
      for (int r = 0; r < size; ++r) {
        if (host(r) == host(rank)) continue;
        auto bytes = context_->createPair(r)->address().bytes();
        put_u32(addresses, static_cast<uint32_t>(r));
        put_u32(addresses, static_cast<uint32_t>(bytes.size()));
        addresses.append(bytes.begin(), bytes.end());
      }
      store.set(fmt::format("net/{}", rank), addresses);
      Impatience impatience(*context_, trouble);
      std::vector<std::pair<int, sockaddr_storage>> listening, reached;  // of a connection, one end or the other
      for (int r = 0; r < size; ++r) {
        if (host(r) == host(rank)) continue;
        stage = fmt::format("rank {} on {} is not reached", r, hosts.names[static_cast<size_t>(host(r))]);
        std::string theirs = store.get(fmt::format("net/{}", r), left_s(), trouble);
        for (size_t at = 0; at + 8 <= theirs.size();) {
          uint32_t to = get_u32(theirs.data() + at), bytes = get_u32(theirs.data() + at + 4);
          at += 8;
          if (to == static_cast<uint32_t>(rank) && at + bytes <= theirs.size()) {
            const std::vector<char> there(theirs.begin() + static_cast<int64_t>(at),
                                          theirs.begin() + static_cast<int64_t>(at + bytes));
            auto& pair = *context_->getPair(r);
            listening.emplace_back(r, tcp::Address(pair.address().bytes()).getSockaddr());
            reached.emplace_back(r, tcp::Address(there).getSockaddr());
            pair.connect(there);
          }
          at += bytes;
        }
      }
      if (const std::string why = trouble(); !why.empty()) fail_runtime("{}", why);
      find_sockets(listening, reached);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      if (const std::string why = trouble(); !why.empty()) fail_runtime("{}", why);
      fail_runtime("rank {} at {}: {} over the network: {}. See that the hosts reach each other on all ports of that "
                   "network; HOLON_NET_INTERFACE names another interface.",
                   rank, address, stage, e.what());
    }
  }

  std::unique_ptr<Transit> start(std::span<const Message> send, std::span<const Message> receive) override {
    return std::make_unique<Flight>(*this, send, receive);
  }

  int silent_rank(double limit_s) override {
    for (const Socket& s : sockets_)
      if (s.is_open() && is_silent(s.fd, limit_s)) return s.rank;
    return -1;
  }

 private:
  using Places = std::vector<std::pair<int, sockaddr_storage>>;

  // Which of the process's sockets are the connections: one end of each is where a pair has listened.
  void find_sockets(const Places& listening, const Places& reached) {
    const double limit_s = heartbeat_limit_s();
    auto rank_at = [](const Places& places, const sockaddr_storage& place) {
      auto found = std::find_if(places.begin(), places.end(), [&](auto& p) { return same_place(p.second, place); });
      return found == places.end() ? -1 : found->first;
    };
    std::error_code error;
    for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
      const int fd = std::atoi(entry.path().filename().c_str());
      sockaddr_storage here{}, there{};
      socklen_t n = sizeof here, m = sizeof there;
      struct stat is {};
      if (fstat(fd, &is) != 0 || !S_ISSOCK(is.st_mode) ||
          getsockname(fd, reinterpret_cast<sockaddr*>(&here), &n) != 0 ||
          getpeername(fd, reinterpret_cast<sockaddr*>(&there), &m) != 0)
        continue;
      const int rank = std::max(rank_at(listening, here), rank_at(reached, there));
      if (rank < 0) continue;
      sockets_.push_back({rank, fd, is.st_ino});
      close_in_children(fd);
      keep_alive(fd, limit_s, false);
    }
  }

  class Flight final : public Transit {
   public:
    Flight(GlooNetwork& network, std::span<const Message> send, std::span<const Message> receive) : network_(network) {
      NoBrokenPipe quiet;
      for (const Message& m : receive) post(m, false);
      for (const Message& m : send) post(m, true);
    }

    Failure wait_received(const Trouble& trouble) override { return wait(false, trouble); }
    Failure wait_sent(const Trouble& trouble) override { return wait(true, trouble); }

   private:
    struct Posted {
      int rank;
      bool sends;
      std::unique_ptr<UnboundBuffer> buffer;
      std::string failure;
      bool done = false;
    };

    void post(const Message& m, bool sends) {
      Posted p{m.rank, sends, network_.context_->createUnboundBuffer(m.data, m.bytes), {}};
      try {
        if (sends)
          p.buffer->send(m.rank, m.tag);
        else
          p.buffer->recv(m.rank, m.tag);
      } catch (const std::exception& e) {
        p.failure = e.what();
      }
      posted_.push_back(std::move(p));
    }

    static Failure failure_of(const Posted& p, const std::string& what) {
      bool closed = what.find("closed by peer") != std::string::npos || what.find("reset by peer") != std::string::npos;
      return {p.rank,
              closed ? "has closed its connection: it has ended or crashed" : "is not reached any more: " + what};
    }

    Failure wait(bool sends, const Trouble& trouble) {
      BlockingScope unlocked;
      for (Posted& p : posted_) {
        if (p.sends != sends || p.done) continue;
        if (!p.failure.empty()) return failure_of(p, p.failure);
        Ticker::Scope scope(network_.ticker_, p.buffer.get());
        constexpr auto kForEver = std::chrono::hours(24 * 365);
        try {
          while (!(sends ? p.buffer->waitSend(kForEver) : p.buffer->waitRecv(kForEver)))
            if (std::string why = trouble(); !why.empty()) return {-1, why};
        } catch (const gloo::Exception& e) {
          return failure_of(p, e.what());
        }
        p.done = true;
      }
      return {};
    }

    GlooNetwork& network_;
    std::vector<Posted> posted_;
  };

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::vector<Socket> sockets_;
  Ticker ticker_;
};

}  // namespace

extern "C" Network* holon_connect_gloo(int rank, const Hosts* hosts, const char* address, StoreClient* store,
                                       double timeout_s, const std::function<std::string()>* trouble) {
  return new GlooNetwork(rank, *hosts, address, *store, timeout_s, *trouble);
}

}  // namespace holon::comm
