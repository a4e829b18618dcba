// Ranks of several hosts that are lost, and how soon those of the other hosts hear of it. The hosts are one machine
// here that goes by several names (HOLON_HOST); tests/hosts has hosts whose cables can be cut.
//
// Limits are long, so that what is told in time and what is told by a time-out cannot be mistaken on a busy machine.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <set>

#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/socket.h"
#include "holon/comm/bootstrap/store.h"
#include "tests/cpp/comm/processes.h"

namespace holon::comm::test {
namespace {

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

constexpr double kSoon = 40;  // seconds, of the 120 in which nothing would be told

// Ranks with a host each, or per_host of them.
struct World {
  std::vector<std::unique_ptr<Process>> ranks;
  int port = free_port();

  World(int n, const std::string& mode, int per_host = 1) {
    for (int r = 0; r < n; ++r) {
      auto v = rank_environment(r, n, port);
      v["HOLON_HOST"] = "host" + std::to_string(r / per_host);
      v["HOLON_NET_INTERFACE"] = "lo";
      v["HOLON_COMM_TIMEOUT_S"] = v["HOLON_RENDEZVOUS_TIMEOUT_S"] = v["HOLON_HEARTBEAT_S"] = "120";
      ranks.push_back(std::make_unique<Process>(std::vector<std::string>{RANK_PROGRAM, mode}, v));
    }
  }
  Process& operator[](int r) { return *ranks[static_cast<size_t>(r)]; }
  bool ready() {
    for (auto& r : ranks)
      if (!r->wait_for_output("is ready", 60)) return false;
    return true;
  }
};

class Losses : public testing::TestWithParam<const char*> {
  void SetUp() override {
    if (std::string(NETWORKS).find(std::string("holon_") + GetParam()) == std::string::npos)
      GTEST_SKIP() << "this build has no " << GetParam();
    setenv("HOLON_NETWORK", GetParam(), 1);
  }
  void TearDown() override { unsetenv("HOLON_NETWORK"); }
};
INSTANTIATE_TEST_SUITE_P(EachNetwork, Losses, testing::Values("gloo", "ucx"),
                         [](auto& network) { return std::string(network.param); });

TEST_P(Losses, WhoWaitsForAnotherIsToldToo) {
  World w(3, "wait_for_busy");
  ASSERT_TRUE(w.ready()) << w[0].output();
  w[2].send_signal(SIGKILL);
  EXPECT_EQ(w[0].wait(kSoon), 1) << w[0].output();
  EXPECT_HAS(w[0].output(), "rank 2 has failed: it was killed or has crashed on host2");
}

TEST_P(Losses, ChildrenHoldNoConnections) {
  World w(3, "wait_for_busy_with_workers");
  ASSERT_TRUE(w.ready()) << w[0].output();
  w[2].send_signal(SIGKILL);
  EXPECT_EQ(w[0].wait(kSoon), 1) << w[0].output();
  EXPECT_HAS(w[0].output(), "rank 2 has failed: it was killed or has crashed on host2");
  for (auto& r : w.ranks) {
    const std::string text = r->output(), said = "has the worker ";
    const size_t at = text.find(said);
    ASSERT_NE(at, std::string::npos) << text;
    kill(std::stoi(text.substr(at + said.size())), SIGKILL);
  }
}

TEST_P(Losses, WhoServesTheStoreIsMissed) {
  // Those on its host hear of it by its process, others by the store.
  World v(4, "work", 2);
  ASSERT_TRUE(v.ready()) << v[0].output();
  v[0].send_signal(SIGKILL);
  for (int r : {1, 2, 3}) {
    EXPECT_EQ(v[r].wait(kSoon), 1) << v[r].output();
    EXPECT_HAS(v[r].output(), "rank 0 ");
  }
}

TEST_P(Losses, TwoAtOnce) {
  for (auto [a, b] : {std::pair(1, 2), std::pair(2, 3), std::pair(0, 3)}) {
    World w(4, "work", 2);
    ASSERT_TRUE(w.ready()) << w[0].output();
    w[a].send_signal(SIGKILL);
    w[b].send_signal(SIGKILL);
    for (int r = 0; r < 4; ++r) {
      if (r == a || r == b) continue;
      EXPECT_EQ(w[r].wait(kSoon), 1) << w[r].output();
      const std::string text = w[r].output();
      EXPECT_TRUE(text.find("rank " + std::to_string(a)) != std::string::npos ||
                  text.find("rank " + std::to_string(b)) != std::string::npos)
          << text;
    }
  }
}

TEST_P(Losses, WhoEndsInOrderIsNotMissed) {
  for (int i = 0; i < 5; ++i) {
    World w(3, "rank0_leaves");
    for (auto& r : w.ranks) EXPECT_EQ(r->wait(), 0) << r->output();
  }
}

// While ranks start, find each other, connect, work.
TEST_P(Losses, InAnyPhase) {
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    const int victim = static_cast<int>(random() % 3), delay_ms = static_cast<int>(random() % 250);
    World w(3, "work");
    // Before it has handed itself in, another process may still come in its place.
    ASSERT_TRUE(w[victim].wait_for_output("is ready", 0.001 * delay_ms) || true);
    w[victim].send_signal(SIGKILL);
    const bool met = w[victim].output().find("is ready") != std::string::npos;
    for (int r = 0; r < 3 && met; ++r) {
      if (r == victim) continue;
      EXPECT_EQ(w[r].wait(kSoon), 1) << "victim " << victim << " after " << delay_ms << " ms: " << w[r].output();
      EXPECT_HAS(w[r].output(), "rank " + std::to_string(victim));
    }
  }
}

TEST(Inherited, ChildrenHaveNoSocketThatIsNamed) {
  Fd named(socket(AF_UNIX, SOCK_STREAM, 0)), other(socket(AF_UNIX, SOCK_STREAM, 0)), reused;
  close_in_children(named.get());
  const int number = socket(AF_UNIX, SOCK_STREAM, 0);
  close_in_children(number);
  close(number);
  reused = Fd(open("/dev/zero", O_RDONLY));
  ASSERT_EQ(reused.get(), number);
  EXPECT_TRUE(fcntl(named.get(), F_GETFD) & FD_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {
    auto is_socket = [](const Fd& fd) {
      struct stat is {};
      return fstat(fd.get(), &is) == 0 && S_ISSOCK(is.st_mode);
    };
    char zero = 1;
    const bool kept = read(reused.get(), &zero, 1) == 1 && zero == 0;
    _exit(is_socket(named) || !is_socket(other) || !kept ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Store, AWillIsDoneWhenItsConnectionEnds) {
  StoreServer server("127.0.0.1", 0, "");
  StoreClient here("127.0.0.1", server.port(), "", 10);
  {
    StoreClient a("127.0.0.1", server.port(), "", 10), b("127.0.0.1", server.port(), "", 10);
    a.will("a", "gone");
    b.will("b", "gone");
    b.will("", "");
  }
  EXPECT_EQ(here.get("a", 30), "gone");
  here.set("c", "first");
  std::make_unique<StoreClient>("127.0.0.1", server.port(), "", 10)->will("c", "second");
  EXPECT_EQ(here.find("b", 0.2), std::nullopt);
  EXPECT_EQ(here.get("c", 1), "first");
}

TEST(Store, WhoLeavesAGatheringIsNamedToAll) {
  StoreServer server("127.0.0.1", 0, "");
  StoreClient here("127.0.0.1", server.port(), "", 10), there("127.0.0.1", server.port(), "", 10);
  using Outcome = StoreClient::Gathered::Outcome;
  here.leave("early", 2, "has ended");
  for (StoreClient* c : {&here, &there}) {
    const auto g = c->gather("early", 0, 3, "x", 30);
    EXPECT_EQ(g.outcome, Outcome::kLeft);
    EXPECT_EQ(g.left, 2);
    EXPECT_EQ(g.values, std::vector<std::string>{"has ended"});
  }
  // What is complete stays so.
  EXPECT_EQ(here.gather("done", 0, 1, "x", 30).outcome, Outcome::kComplete);
  here.leave("done", 0, "has ended");
  EXPECT_EQ(here.gather("done", 0, 1, "x", 30).outcome, Outcome::kTaken);
}

TEST(Store, AServerThatEndsInOrderSaysSo) {
  auto server = std::make_unique<StoreServer>("127.0.0.1", 0, "");
  StoreClient idle("127.0.0.1", server->port(), "", 10);
  idle.set("a", "1");
  server.reset();
  EXPECT_EQ(idle.find("b", 30), std::nullopt);
  EXPECT_ANY_THROW(idle.set("a", "2"));
}

}  // namespace
}  // namespace holon::comm::test
