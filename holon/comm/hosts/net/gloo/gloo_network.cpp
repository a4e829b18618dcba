// Messages over TCP, by Gloo (https://github.com/pytorch/gloo). A module that is loaded by the first world of several
// hosts: other programs pay nothing for it.

#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"
#include "holon/comm/bootstrap/tcp.h"
#include "holon/comm/hosts/net/network_module.h"

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

// Gloo's thread waits while one exists: it accepts no connection, and reads nothing of one.
class Halt final : public tcp::Handler {
 public:
  explicit Halt(tcp::Device& device) : device_(device), call_(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)) {
    device_.registerDescriptor(call_.get(), EPOLLIN, this);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return halted_; });
  }
  ~Halt() override {
    {
      std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    device_.unregisterDescriptor(call_.get(), this);
  }
  Halt(const Halt&) = delete;
  Halt& operator=(const Halt&) = delete;

  void handleEvents(int) override {
    std::unique_lock lock(mutex_);
    halted_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return ended_; });
  }

 private:
  tcp::Device& device_;
  const Fd call_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool halted_ = false, ended_ = false;
};

// The descriptor of this process whose socket the condition holds for; -1: none.
template <class Condition>
int find_socket(Condition holds) {
  for (auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    if (const int fd = std::atoi(entry.path().filename().c_str()); holds(fd)) return fd;
  return -1;
}

// Lets through only what comes from this port; 0: nothing. Who has come before is dropped. Pre: Gloo's thread waits.
void admit(int listener, int port) {
  sock_filter program[] = {{BPF_LD | BPF_H | BPF_ABS, 0, 0, 0},  // the sender's port
                           {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<uint32_t>(port)},
                           {BPF_RET | BPF_K, 0, 0, port ? 0xffffffffu : 0},
                           {BPF_RET | BPF_K, 0, 0, 0}};
  const sock_fprog filter{static_cast<uint16_t>(std::size(program)), program};
  if (setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0)
    fail_runtime("a port cannot be closed to strangers: {}", strerror(errno));
  if (port) return;
  pollfd come{listener, POLLIN, 0};
  while (poll(&come, 1, 0) == 1 && Fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC))) {
  }
}

// Gloo takes whoever connects first to a pair's port for the peer, and lets nobody hand it a connection. So each pair
// is connected with this process itself, at the loopback address, and then the connection whose other end has proved
// who it is takes that one's place, under the same number. Nobody else can connect before: what a stranger sends ends
// the process.
class StandIn {
 public:
  StandIn(gloo::transport::Context& context, int peer, tcp::Device& device) {
    std::optional<Halt> halt(device);
    gloo::transport::Pair& pair = *context.createPair(peer);
    const tcp::Address gloos(pair.address().bytes());
    Address at;
    at.storage = gloos.getSockaddr();
    at.size = at.ipv4() ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    const int listener =
        find_socket([&](int fd) { return local_address(fd).str() == at.str() && !peer_address(fd).is_ip(); });
    if (listener < 0) return;
    admit(listener, 0);
    end_ = Fd(socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    Address from = at;
    from.set_port(0);
    if (!end_ || bind(end_.get(), reinterpret_cast<const sockaddr*>(&from.storage), from.size) != 0) return;
    admit(listener, local_address(end_.get()).port());
    if (connect(end_.get(), reinterpret_cast<const sockaddr*>(&at.storage), at.size) != 0 && errno != EINPROGRESS)
      return;
    halt.reset();
    pollfd ready{end_.get(), POLLOUT, 0};
    if (poll(&ready, 1, 5000) != 1 || connect_error(end_.get()) != 0) return;
    // Later versions have one port for all pairs, which are told apart by a number.
    if (auto number = gloos.getSeq(); number != tcp::Address::kSequenceNumberUnset)
      if (send(end_.get(), &number, sizeof number, MSG_NOSIGNAL) != sizeof number) return;
    // The side with the lower address waits, and does not connect itself.
    Address highest = at;
    if (at.ipv4())
      reinterpret_cast<sockaddr_in&>(highest.storage).sin_addr.s_addr = INADDR_BROADCAST;
    else
      std::memset(&reinterpret_cast<sockaddr_in6&>(highest.storage).sin6_addr, 0xff, sizeof(in6_addr));
    pair.connect(tcp::Address(reinterpret_cast<sockaddr*>(&highest.storage), highest.size).bytes());
    const std::string mine = local_address(end_.get()).str();
    gloos_ = find_socket([&](int fd) {
      const Address other = peer_address(fd);
      return other.is_ip() && other.str() == mine;
    });
  }
  // False: somebody else came first.
  explicit operator bool() const { return gloos_ >= 0; }

  // Returns the number.
  int replace(gloo::transport::Pair& pair, tcp::Device& device, Fd connection) {
    if (dup3(connection.get(), gloos_, O_CLOEXEC) < 0)
      fail_runtime("cannot pass a connection to Gloo: {}", strerror(errno));
    device.registerDescriptor(gloos_, EPOLLIN, &dynamic_cast<tcp::Handler&>(pair));
    return gloos_;
  }

 private:
  Fd end_;
  int gloos_ = -1;
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

class GlooNetwork final : public Network {
 public:
  explicit GlooNetwork(NetworkStart* start) {
    std::map<int, Fd>& connections = start->connections;
    try {
      NoBrokenPipe quiet;  // its thread inherits that
      device_ = make_device(start->address);
      std::map<int, StandIn> stand_ins;
      for (int tries = 0; stand_ins.size() < connections.size(); ++tries) {
        if (tries == 100) fail_runtime("other programs of this host connect to each of its ports at once");
        stand_ins.clear();
        context_ = device_->createContext(start->rank, start->size);
        // Gloo waits five times as long for a connection. Waits for messages have their own limit.
        context_->setTimeout(std::chrono::milliseconds(static_cast<int64_t>(start->timeout_s * 200)));
        for (auto& [peer, connection] : connections) {
          StandIn stand_in(*context_, peer, *device_);
          if (!stand_in) break;
          stand_ins.emplace(peer, std::move(stand_in));
        }
      }
      const double limit_s = heartbeat_limit_s();
      for (auto& [peer, stand_in] : stand_ins) {
        const int fd = stand_in.replace(*context_->getPair(peer), *device_, std::move(connections.at(peer)));
        struct stat is {};
        fstat(fd, &is);
        sockets_.push_back({peer, fd, is.st_ino});
        close_in_children(fd);
        keep_alive(fd, limit_s, false);
      }
    } catch (const std::exception& e) {
      fail_runtime("rank {} at {} cannot use the network: {}.", start->rank, start->address, e.what());
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
  // A pair's port is open for a moment: at an address that other hosts do not reach, where this one has such.
  static std::shared_ptr<tcp::Device> make_device(const std::string& address) {
    std::shared_ptr<gloo::transport::Device> device;
    tcp::attr attr;
    attr.hostname = "127.0.0.1";
    try {
      device = tcp::CreateDevice(attr);
    } catch (const std::exception&) {
      attr.hostname = address;
      device = tcp::CreateDevice(attr);
    }
    return std::dynamic_pointer_cast<tcp::Device>(device);
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
              closed ? "has closed its connection: it has ended or crashed" : "cannot be reached any more: " + what};
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

  std::shared_ptr<tcp::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::vector<Socket> sockets_;
  Ticker ticker_;
};

}  // namespace

extern "C" Network* holon_gloo_network(NetworkStart* start) { return new GlooNetwork(start); }

}  // namespace holon::comm
