// Data connections between ranks, here threads that play at hosts of their own, while strangers come to their ports.
#include "holon/comm/hosts/net/data_connections.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "holon/base/error.h"
#include "holon/comm/bootstrap/handshake.h"

namespace holon::comm {
namespace {

struct Ranks {
  StoreServer server{"127.0.0.1", 0, "store"};
  std::vector<std::map<int, Fd>> connected;
  std::vector<std::string> errors;

  // One rank on each host. tokens: of each rank. first: what rank 0 does when the others already listen.
  Ranks(
      const std::vector<std::string>& tokens, double timeout_s, const std::function<void()>& first = [] {})
      : connected(tokens.size()), errors(tokens.size()) {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < tokens.size(); ++r)
      threads.emplace_back([&, r] {
        Rendezvous m;
        m.client = std::make_unique<StoreClient>("127.0.0.1", server.port(), "store", 20);
        m.token = tokens[r];
        m.ranks.resize(tokens.size());
        m.address = {"127.0.0.1", "lo, for this test", true};
        for (size_t host = 0; host < tokens.size(); ++host) {
          m.hosts.of_rank.push_back(static_cast<int>(host));
          m.hosts.names.push_back("host" + std::to_string(host));
        }
        try {
          for (size_t other = 1; r == 0 && other < tokens.size(); ++other)
            m.client->get("net/" + std::to_string(other), timeout_s);
          if (r == 0) first();
          connected[r] = connect_hosts(static_cast<int>(r), m, timeout_s, [] { return std::string(); });
        } catch (const Error& e) {
          errors[r] = e.what();
        }
      });
  }

  // Every connection leads where it says: a rank's number comes out of it, and nothing else.
  void check() {
    const size_t n = connected.size();
    auto each = [&](auto f) {
      for (size_t r = 0; r < n; ++r) {
        ASSERT_EQ(errors[r], "") << r;
        ASSERT_EQ(connected[r].size(), n - 1);
        for (auto& [peer, fd] : connected[r]) f(static_cast<int>(r), peer, fd.get());
      }
    };
    each([](int r, int peer, int fd) {
      uint32_t mine[2] = {static_cast<uint32_t>(r), static_cast<uint32_t>(peer)};
      EXPECT_EQ(send(fd, mine, sizeof mine, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof mine));
    });
    each([](int r, int peer, int fd) {
      uint32_t theirs[2] = {99, 99};
      pollfd p{fd, POLLIN, 0};
      ASSERT_EQ(poll(&p, 1, 20'000), 1);
      EXPECT_EQ(recv(fd, theirs, sizeof theirs, 0), static_cast<ssize_t>(sizeof theirs));
      EXPECT_EQ(theirs[0], static_cast<uint32_t>(peer));
      EXPECT_EQ(theirs[1], static_cast<uint32_t>(r));
    });
  }
};

// The ports that this process listens at.
std::vector<Address> listening() {
  std::vector<Address> found;
  for (int fd = 3; fd < 1024; ++fd) {
    int yes = 0;
    socklen_t size = sizeof yes;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &size) != 0 || !yes) continue;
    Address a = local_address(fd);
    if (a.ipv4() || a.storage.ss_family == AF_INET6) found.push_back(a);
  }
  return found;
}

// Comes to every port again and again: silent, with half a greeting, with random bytes, with a whole greeting and a
// wrong proof; some connections stay open.
class Strangers {
 public:
  explicit Strangers(unsigned seed) : random_(seed), thread_([this](std::stop_token stop) { run(stop); }) {}
  int came() const { return came_; }

 private:
  void run(std::stop_token stop) {
    std::vector<Fd> open;
    while (!stop.stop_requested()) {
      for (const Address& a : listening()) {
        Fd fd = start_connect(a);
        if (!fd) continue;
        pollfd p{fd.get(), POLLOUT, 0};
        poll(&p, 1, 100);
        std::string bytes = Handshake(Handshake::Side::kConnects, "", "", random_() % 4).begin();
        switch (random_() % 5) {
          case 0: bytes.clear(); break;
          case 1: bytes.resize(random_() % bytes.size()); break;
          case 2: bytes = random_bytes(1 + random_() % 100); break;
          case 3: bytes += random_bytes(32); break;
          default: break;
        }
        if (send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) ++came_;
        if (random_() % 2) open.push_back(std::move(fd));
        if (open.size() > 200) open.erase(open.begin(), open.begin() + 100);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

  std::mt19937 random_;
  std::atomic<int> came_ = 0;
  std::jthread thread_;
};

TEST(DataConnections, EveryPair) {
  for (size_t n : {2u, 3u, 7u}) Ranks(std::vector<std::string>(n, "secret"), 60).check();
}

TEST(DataConnections, StrangersDoNotTakeAnybodysPlace) {
  for (unsigned round = 0; round < 30; ++round) {
    Strangers strangers(round);
    auto some_have_come = [&] {
      while (strangers.came() < 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    Ranks(std::vector<std::string>(2 + round % 3, "secret"), 60, some_have_come).check();
  }
}

TEST(DataConnections, AnotherToken) {
  Ranks ranks({"secret", "secret", "guess"}, 5);
  for (int r : {0, 1}) {
    EXPECT_NE(ranks.errors[static_cast<size_t>(r)].find("Rank 2 on host2 has not connected to this rank, which listens "
                                                        "at 127.0.0.1:"),
              std::string::npos)
        << ranks.errors[static_cast<size_t>(r)];
  }
  EXPECT_NE(ranks.errors[2].find("cannot be reached: its token is different"), std::string::npos) << ranks.errors[2];
  EXPECT_NE(ranks.errors[2].find("Rank 1 on host1, which listens at 127.0.0.1:"), std::string::npos) << ranks.errors[2];
  EXPECT_NE(ranks.errors[2].find("HOLON_NET_INTERFACE"), std::string::npos);
}

}  // namespace
}  // namespace holon::comm
