// Messages by UCX (https://openucx.org): RDMA where there is some, else TCP. A module that is loaded by the first world
// of several hosts that asks for it.
//
// The thread that waits for a message makes UCX work, and so does one that starts one. While none does, a thread of the
// network's looks after what is on its way: a rank may compute for long after it has sent.

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"
#include "holon/comm/bootstrap/tcp.h"
#include "holon/comm/hosts/net/network_module.h"
#include "holon/comm/hosts/net/ucx/gate.h"
#include "holon/comm/hosts/net/ucx/peers.h"

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// The name of an interface, if it is running.
std::string running_interface(const std::string& address) {
  std::string found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (ifaddrs* i = all; i && found.empty(); i = i->ifa_next) {
    if (!i->ifa_addr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
    Address a;
    a.size = i->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&a.storage, i->ifa_addr, a.size);
    if (a.ip() == address && (i->ifa_flags & IFF_RUNNING)) found = i->ifa_name;
  }
  freeifaddrs(all);
  return found;
}

// UCX takes no interface that has just been made, until the system calls it running.
std::string interface_of(const NetworkStart& start) {
  for (const auto begun = Clock::now();;) {
    const std::string name = running_interface(start.address);
    if (!name.empty()) return name;
    if (std::chrono::duration<double>(Clock::now() - begun).count() > start.timeout_s)
      fail_runtime("no interface that is running has this address");
    if (const std::string why = start.trouble(); !why.empty()) fail_runtime("{}", why);
    std::this_thread::sleep_for(milliseconds(20));
  }
}

// ",mlx5_0:1": what UCX calls them, each after a comma.
std::string rdma_devices() {
  std::string devices;
  std::error_code none;
  for (auto& device : std::filesystem::directory_iterator("/sys/class/infiniband", none))
    for (auto& port : std::filesystem::directory_iterator(device.path() / "ports", none))
      devices += fmt::format(",{}:{}", device.path().filename().string(), port.path().filename().string());
  return devices;
}

// A variable that a library reads from the environment alone, for as long as this lives; the user's own stays.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name), ours_(setenv_if_unset(name, value)) {}
  ~Variable() {
    if (ours_) unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  static bool setenv_if_unset(const char* name, const char* value) {
    return !std::getenv(name) && setenv(name, value, 0) == 0;
  }
  const char* name_;
  bool ours_;
};

void check(ucs_status_t status, const char* what) {
  if (UCS_STATUS_IS_ERR(status)) fail_runtime("UCX {}: {}", what, ucs_status_string(status));
}

class UcxNetwork final : public Network {
 public:
  explicit UcxNetwork(NetworkStart* start) {
    // Crashes are for the program to handle, as without this library.
    for (int s : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(s);
    try {
      create(*start);
      watch_connections();
    } catch (const std::exception& e) {
      fail_runtime("rank {} at {} cannot use the network: {}.", start->rank, start->address, e.what());
    }
    helper_ = std::make_unique<std::thread>([this] {
      leave_host_language();
      help();
    });
  }
  ~UcxNetwork() override;

  std::unique_ptr<Transit> start(std::span<const Message> send, std::span<const Message> receive) override;

  // Measured between two hosts: quicker than 4 MiB from 4 MiB on, as more of a move overlaps; over Gloo it is slower.
  int64_t piece_bytes() const override { return 1 << 20; }

  int silent_rank(double limit_s) override {
    for (auto& [rank, peer] : peers_)
      if (is_silent(peer->connection.get(), limit_s)) return rank;
    return -1;
  }

  // Sends what UCX still has, and makes it work no more: before its library ends with the process.
  void end() {
    if (mark_.inherited()) {
      [[maybe_unused]] auto* of_parent = helper_.release();
      return;
    }
    if (!helper_) return;
    if (!broken_) flush();
    {
      std::scoped_lock lock(mutex_);
      ended_ = true;
      ucp_worker_signal(worker_);
    }
    helper_turn_.notify_one();
    helper_->join();
    helper_.reset();
  }

 private:
  class Flight;

  // A rank's thread that calls UCX: the helper stays away.
  class Turn {
   public:
    explicit Turn(UcxNetwork& network) : network_(network), counted_(network.ranks_), lock_(network.mutex_) {}
    ~Turn() {
      if (!lock_) lock_.lock();
      network_.worked_ = Clock::now();
      // There may be work now of which no event tells.
      if (network_.helper_sleeps_) ucp_worker_signal(network_.worker_);
    }
    std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    struct Counted {
      explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
      ~Counted() { --count_; }
      std::atomic<int>& count_;
    };
    UcxNetwork& network_;
    Counted counted_;
    std::unique_lock<std::mutex> lock_;
  };

  // Takes over the configuration.
  void make_worker(ucp_config_t* config, const NetworkStart& start) {
    const Variable no_waiting("UCX_TCP_CONN_NB", "y");
    const bool ipv6 = start.address.find(':') != std::string::npos;
    const Variable family("UCX_TCP_AF_PRIO", ipv6 ? "inet6,inet" : "inet,inet6");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    params.estimated_num_eps = start.connections.size();
    ucp_context_h context = nullptr;
    const ucs_status_t made = ucp_init(&params, config, &context);
    ucp_config_release(config);
    check(made, "cannot start");
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    check(ucp_worker_create(context, &worker, &worker_), "cannot use its devices");
  }

  void create(NetworkStart& start) {
    const std::string interface = interface_of(start), rdma = rdma_devices();
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "has no configuration");
    auto set = [&](const char* name, const std::string& value) {
      if (!std::getenv(fmt::format("UCX_{}", name).c_str())) ucp_config_modify(config, name, value.c_str());
    };
    set("TLS", "^shm");  // ranks that can share memory do not come here
    set("NET_DEVICES", interface + rdma);
    // Up to here a copy at the receiver takes less time than asking him first, over TCP.
    if (rdma.empty()) set("RNDV_THRESH", "320K");
    // While a worker is made, UCX aborts the process (an assertion of ucp_worker_iface_check_events) if somebody comes
    // to its port, unless all interfaces are polled from the start.
    set("ADAPTIVE_PROGRESS", "n");
    const std::set<ino_t> before = listening_sockets();
    make_worker(config, start);
    Gate gate(before);
    check(ucp_worker_get_efd(worker_, &efd_), "cannot wait");
    peers_ = connect_peers(start, worker_, gate, rdma.empty());
    for (auto& [rank, peer] : peers_)
      for (const UcxSocket& s : peer->sockets) {
        close_in_children(s.fd);
        keep_alive(s.fd, heartbeat_limit_s(), false);
      }
  }

  void watch_connections() {
    events_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.ptr = nullptr;
    epoll_ctl(events_.get(), EPOLL_CTL_ADD, efd_, &e);
    for (auto& [rank, peer] : peers_) {
      close_in_children(peer->connection.get());
      keep_alive(peer->connection.get(), heartbeat_limit_s(), false);
      e.events = EPOLLRDHUP;
      e.data.ptr = peer.get();
      epoll_ctl(events_.get(), EPOLL_CTL_ADD, peer->connection.get(), &e);
    }
  }

  // Sleeps until UCX or a connection has something, or until it is over. The mutex is not held meanwhile.
  void sleep(std::unique_lock<std::mutex>& lock, int ms) {
    if (ucp_worker_arm(worker_) != UCS_OK) return;
    lock.unlock();
    epoll_event events[16];
    const int n = epoll_wait(events_.get(), events, 16, ms);
    lock.lock();
    for (int i = 0; i < n; ++i)
      if (auto* peer = static_cast<UcxPeer*>(events[i].data.ptr)) {
        epoll_ctl(events_.get(), EPOLL_CTL_DEL, peer->connection.get(), nullptr);
        peer->closed = Clock::now();
      }
  }

  // Whether the peer sends nothing any more. What it has sent before it ended may still be on its way.
  static bool lost(const UcxPeer& peer) {
    if (peer.lost != UCS_OK) return true;
    if (!peer.closed) return false;
    if (peer.sockets.empty()) return Clock::now() - *peer.closed > kAfterClose;  // no TCP
    return std::all_of(peer.sockets.begin(), peer.sockets.end(), [](auto& s) { return s.is_over(); });
  }

  // Runs where no rank's thread is at work.
  void help() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      if (ranks_ > 0 || Clock::now() - worked_ < kTurn) {
        helper_turn_.wait_for(lock, kTurn);
        continue;
      }
      if (ucp_worker_progress(worker_) != 0) {
        changed_.notify_all();
        continue;
      }
      helper_sleeps_ = true;
      sleep(lock, -1);
      helper_sleeps_ = false;
    }
  }

  void flush() {
    std::unique_lock lock(mutex_);
    const auto until = Clock::now() + kFlush;
    for (auto& [rank, peer] : peers_) {
      if (lost(*peer)) continue;
      auto* flushed = new bool(false);  // left behind where this gives up
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      params.user_data = flushed;
      params.cb.send = [](void* request, ucs_status_t, void* done) {
        *static_cast<bool*>(done) = true;
        ucp_request_free(request);
      };
      if (!UCS_PTR_IS_PTR(ucp_ep_flush_nbx(peer->endpoint, &params))) *flushed = true;
      while (!*flushed && !lost(*peer) && Clock::now() < until)
        if (ucp_worker_progress(worker_) == 0) sleep(lock, 50);
      if (*flushed) delete flushed;
    }
  }

  static constexpr auto kAbandon = milliseconds(500), kAfterClose = milliseconds(1000);
  static constexpr auto kFlush = std::chrono::seconds(10);
  static constexpr auto kTurn = milliseconds(1);  // after which the helper looks whether ranks' threads are at work

  const ForkMark mark_;
  ucp_worker_h worker_ = nullptr;
  int efd_ = -1;
  Fd events_;
  std::map<int, std::unique_ptr<UcxPeer>> peers_;

  std::mutex mutex_;  // held by who calls UCX
  std::condition_variable changed_, helper_turn_;
  std::atomic<int> ranks_ = 0;  // threads of ranks that use UCX, or are about to
  int waiting_ = 0;             // of these, those that wait for messages
  bool polls_ = false, helper_sleeps_ = false, ended_ = false, broken_ = false;
  Clock::time_point worked_;
  std::unique_ptr<std::thread> helper_;
};

class UcxNetwork::Flight final : public Transit {
 public:
  Flight(UcxNetwork& network, std::span<const Message> send, std::span<const Message> receive)
      : network_(network), count_(send.size() + receive.size()), posted_(std::make_unique<Posted[]>(count_)) {
    Turn turn(network_);
    size_t i = 0;
    for (const Message& m : receive) post(posted_[i++], m, false);
    for (const Message& m : send) post(posted_[i++], m, true);
    while (!over() && ucp_worker_progress(network_.worker_) != 0) {
    }
    if (network_.polls_) ucp_worker_signal(network_.worker_);
  }

  ~Flight() override {
    if (network_.mark_.inherited()) {
      keep();
      return;
    }
    Turn turn(network_);
    if (over()) return;
    network_.broken_ = true;
    for (size_t i = 0; i < count_; ++i)
      if (Posted& p = posted_[i]; !p.done && !p.sends) ucp_request_cancel(network_.worker_, p.request);
    const auto until = Clock::now() + kAbandon;
    auto of_lost = [&](const Posted& p) { return p.done || lost(*network_.peers_.at(p.rank)); };
    while (!std::all_of(posted_.get(), posted_.get() + count_, of_lost) && Clock::now() < until)
      if (ucp_worker_progress(network_.worker_) == 0) network_.sleep(turn.lock(), 10);
    // Half of it may have come. What is left ends with the connection.
    for (size_t i = 0; i < count_; ++i)
      if (Posted& p = posted_[i]; !p.done) close(*network_.peers_.at(p.rank));
    if (!over()) keep();
  }

  Failure wait_received(const Trouble& trouble) override { return wait(false, trouble); }
  Failure wait_sent(const Trouble& trouble) override { return wait(true, trouble); }

 private:
  struct Posted {
    int rank = -1;
    bool sends = false, done = false;
    ucs_status_t status = UCS_OK;
    size_t bytes = 0, received = 0;
    void* request = nullptr;
  };

  void post(Posted& p, const Message& m, bool sends) {
    p.rank = m.rank, p.sends = sends, p.bytes = p.received = m.bytes;
    UcxPeer& peer = *network_.peers_.at(m.rank);
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    params.memory_type = UCS_MEMORY_TYPE_HOST;
    params.user_data = &p;
    ucs_status_ptr_t request;
    if (sends && lost(peer)) {
      request = UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
    } else if (sends) {
      params.cb.send = [](void* r, ucs_status_t status, void* posted) {
        done(r, status, *static_cast<Posted*>(posted));
      };
      request = ucp_tag_send_nbx(peer.endpoint, m.data, m.bytes, UcxPeer::tag(peer.sends, m.tag), &params);
    } else {
      params.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
      ucp_tag_recv_info_t info{};
      info.length = m.bytes;  // UCX 1.13 does not always tell
      params.recv_info.tag_info = &info;
      params.cb.recv = [](void* r, ucs_status_t status, const ucp_tag_recv_info_t* i, void* posted) {
        auto& to = *static_cast<Posted*>(posted);
        if (status == UCS_OK) to.received = i->length;
        done(r, status, to);
      };
      request = ucp_tag_recv_nbx(network_.worker_, m.data, m.bytes, UcxPeer::tag(peer.receives, m.tag), ~uint64_t{0},
                                 &params);
      if (request == nullptr) p.received = info.length;
    }
    if (p.done) return;  // its callback has been called before it was returned
    if (UCS_PTR_IS_PTR(request)) {
      p.request = request;
      if (const ucs_status_t status = ucp_request_check_status(request); status != UCS_INPROGRESS)
        done(request, status, p);
    } else {
      p.done = true;
      p.status = UCS_PTR_STATUS(request);
    }
  }

  static void done(void* request, ucs_status_t status, Posted& p) {
    p.done = true;
    p.status = status;
    p.request = nullptr;
    ucp_request_free(request);
  }

  bool over() const {
    return std::all_of(posted_.get(), posted_.get() + count_, [](const Posted& p) { return p.done; });
  }

  // Nothing is left to wait for: all has arrived, or *failure says why it will not.
  bool settled(bool sends, Failure* failure) const {
    bool all = true;
    for (size_t i = 0; i < count_; ++i) {
      const Posted& p = posted_[i];
      if (p.sends != sends) continue;
      if (p.done && p.status == UCS_OK && p.received == p.bytes) continue;
      all = false;
      if (p.done) {
        *failure = failure_of(p);
        return true;
      }
      if (const UcxPeer& peer = *network_.peers_.at(p.rank); lost(peer)) {
        *failure = failure_of(p.rank, peer.lost == UCS_OK ? UCS_ERR_CONNECTION_RESET : peer.lost);
        return true;
      }
    }
    return all;
  }

  static Failure failure_of(const Posted& p) {
    if (p.status == UCS_OK || p.status == UCS_ERR_MESSAGE_TRUNCATED)
      return {p.rank, fmt::format("has sent a message of another size than {} bytes", p.bytes)};
    return failure_of(p.rank, p.status);
  }
  static Failure failure_of(int rank, ucs_status_t status) {
    const bool closed = status == UCS_ERR_CONNECTION_RESET || status == UCS_ERR_CANCELED;
    return {rank,
            closed ? "has closed its connection: it has ended or crashed"
                   : fmt::format("cannot be reached any more: UCX: {}", ucs_status_string(status))};
  }

  Failure wait(bool sends, const Trouble& trouble) {
    Failure failure;
    {
      Turn turn(network_);
      if (settled(sends, &failure)) return failure;
    }
    BlockingScope unlocked;
    Turn turn(network_);
    std::unique_lock<std::mutex>& lock = turn.lock();
    struct Waiting {
      UcxNetwork& network;
      std::unique_lock<std::mutex>& lock;
      ~Waiting() {
        if (!lock) lock.lock();
        --network.waiting_;
        if (network.waiting_ > 0) network.changed_.notify_all();  // another thread sleeps for UCX then
      }
    } waiting{network_, lock};
    ++network_.waiting_;
    auto asked = Clock::now();
    while (!settled(sends, &failure)) {
      if (network_.polls_) {
        network_.changed_.wait_for(lock, kAsk);
      } else if (ucp_worker_progress(network_.worker_) != 0) {
        if (network_.waiting_ > 1) network_.changed_.notify_all();
        if (network_.ranks_ > network_.waiting_) {  // another thread is about to start a message
          lock.unlock();
          std::this_thread::yield();
          lock.lock();
        }
      } else {
        network_.polls_ = true;
        network_.sleep(lock, static_cast<int>(kAsk.count()));
        network_.polls_ = false;
      }
      if (Clock::now() - asked < kAsk) continue;
      lock.unlock();
      const std::string why = trouble();
      lock.lock();
      asked = Clock::now();
      if (!why.empty() && !settled(sends, &failure)) failure = {-1, why};
      if (failure) break;
    }
    network_.broken_ |= static_cast<bool>(failure);
    return failure;
  }

  void close(UcxPeer& peer) {
    if (peer.lost == UCS_OK) peer.lost = UCS_ERR_CANCELED;
    for (const UcxSocket& s : peer.sockets) s.drop();
    peer.sockets.clear();
    if (!peer.endpoint) return;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;  // which UCX does where it handles errors
    const ucs_status_ptr_t closing = ucp_ep_close_nbx(peer.endpoint, &params);
    if (UCS_PTR_IS_PTR(closing)) ucp_request_free(closing);
    peer.endpoint = nullptr;
    for (int i = 0; i < 100 && ucp_worker_progress(network_.worker_) != 0; ++i) {
    }
  }

  // UCX may still refer to it.
  void keep() { [[maybe_unused]] auto* kept = posted_.release(); }

  static constexpr milliseconds kAsk{50};
  UcxNetwork& network_;
  const size_t count_;
  std::unique_ptr<Posted[]> posted_;
};

std::unique_ptr<Network::Transit> UcxNetwork::start(std::span<const Message> send, std::span<const Message> receive) {
  return std::make_unique<Flight>(*this, send, receive);
}

UcxNetwork* of_process = nullptr;

UcxNetwork::~UcxNetwork() {
  end();
  of_process = nullptr;
}

}  // namespace

extern "C" Network* holon_ucx_network(NetworkStart* start) {
  of_process = new UcxNetwork(start);
  static const bool ends = [] {
    // Later than the library was loaded, and so before it ends.
    return std::atexit([] {
             if (of_process) of_process->end();
           }) == 0;
  }();
  (void)ends;
  return of_process;
}

}  // namespace holon::comm
