#include "holon/comm/net/gloo_network.h"

#include <arpa/inet.h>
#include <gloo/common/error.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/error.h"
#include "holon/base/settings.h"
#include "holon/comm/bootstrap/socket.h"

namespace holon::comm {

namespace {

namespace tcp = gloo::transport::tcp;
using gloo::transport::UnboundBuffer;

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  else if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

bool is_loopback(const std::string& text) { return text.starts_with("127.") || text == "::1"; }

// The first address of an interface, or of any that is up and no loopback.
std::string address_of_interface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (int family : {AF_INET, AF_INET6})
    for (ifaddrs* a = list; a && found.empty(); a = a->ifa_next) {
      if (!a->ifa_addr || a->ifa_addr->sa_family != family || !(a->ifa_flags & IFF_UP)) continue;
      if (name.empty() ? !(a->ifa_flags & IFF_LOOPBACK) : name == a->ifa_name) found = text_of(a->ifa_addr);
    }
  freeifaddrs(list);
  return found;
}

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

class GlooNetwork final : public Network {
 public:
  GlooNetwork(int rank, const Hosts& hosts, const std::string& address, StoreClient& store, double timeout_s) {
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
      for (int r = 0; r < size; ++r) {
        if (host(r) == host(rank)) continue;
        stage = fmt::format("rank {} on {} is not reached", r, hosts.names[static_cast<size_t>(host(r))]);
        std::string theirs = store.get(fmt::format("net/{}", r), left_s());
        for (size_t at = 0; at + 8 <= theirs.size();) {
          uint32_t to = get_u32(theirs.data() + at), bytes = get_u32(theirs.data() + at + 4);
          at += 8;
          if (to == static_cast<uint32_t>(rank) && at + bytes <= theirs.size())
            context_->getPair(r)->connect(std::vector<char>(theirs.begin() + static_cast<int64_t>(at),
                                                            theirs.begin() + static_cast<int64_t>(at + bytes)));
          at += bytes;
        }
      }
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      fail_runtime("rank {} at {}: {} over the network: {}. See that the hosts reach each other on all ports of that "
                   "network; HOLON_NET_INTERFACE names another interface.",
                   rank, address, stage, e.what());
    }
  }

  std::unique_ptr<Transit> start(std::span<const Message> send, std::span<const Message> receive) override {
    return std::make_unique<Flight>(*this, send, receive);
  }

 private:
  class Flight final : public Transit {
   public:
    Flight(GlooNetwork& network, std::span<const Message> send, std::span<const Message> receive) : network_(network) {
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
      return {p.rank, closed ? "has closed its connection: it has ended or crashed" : "is not reached any more: " + what};
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
  Ticker ticker_;
};

}  // namespace

std::string network_address(const std::string& master_addr) {
  if (std::string name = settings::text("HOLON_NET_INTERFACE"); !name.empty()) {
    std::string address = address_of_interface(name);
    if (address.empty())
      fail_value("HOLON_NET_INTERFACE=\"{}\": this host has no such interface that is up and has an address. `ip address` "
                 "lists them.", name);
    return address;
  }
  // The system says from where it would send; nothing is sent.
  Address to = resolve(master_addr, 9);
  Fd probe(socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage mine{};
  socklen_t size = sizeof mine;
  std::string address;
  if (probe && connect(probe.get(), reinterpret_cast<sockaddr*>(&to.storage), to.size) == 0 &&
      getsockname(probe.get(), reinterpret_cast<sockaddr*>(&mine), &size) == 0)
    address = text_of(reinterpret_cast<sockaddr*>(&mine));
  if (!address.empty() && !is_loopback(address)) return address;
  std::string other = address_of_interface("");
  return other.empty() ? address : other;
}

std::unique_ptr<Network> connect_network(int rank, const Hosts& hosts, const std::string& address, StoreClient& store,
                                         double timeout_s) {
  BlockingScope unlocked;
  return std::make_unique<GlooNetwork>(rank, hosts, address, store, timeout_s);
}

}  // namespace holon::comm
