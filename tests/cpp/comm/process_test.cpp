// Ranks as processes that are started by hand, as with MPI's or SLURM's launchers.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "tests/cpp/comm/processes.h"

namespace holon::comm::test {
namespace {

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

using Variables = std::map<std::string, std::string>;

struct World {
  std::vector<std::unique_ptr<Process>> ranks;
  int port = free_port();

  World(int n, const std::string& mode, const Variables& more = {}) {
    for (int r = 0; r < n; ++r) start(r, n, mode, more);
  }
  void start(int rank, int n, const std::string& mode, const Variables& more) {
    Variables v = rank_environment(rank, n, port);
    for (auto& [name, value] : more) v[name] = value;
    ranks.push_back(std::make_unique<Process>(std::vector<std::string>{RANK_PROGRAM, mode}, v));
  }
  Process& operator[](int r) { return *ranks[static_cast<size_t>(r)]; }
};

class Processes : public testing::TestWithParam<int> {};

TEST_P(Processes, Collectives) {
  World w(GetParam(), "collectives");
  for (auto& r : w.ranks) EXPECT_EQ(r->wait(), 0) << r->output();
}
INSTANTIATE_TEST_SUITE_P(Ranks, Processes, testing::Values(2, 3, 8));

TEST(Process, ForksChangeNothingAndCommunicateNothing) {
  // What only threads of the parent point to would be leaks of a child.
  World w(2, "fork", {{"HOLON_COMM_TIMEOUT_S", "120"}, {"LSAN_OPTIONS", "detect_leaks=0"}});
  for (auto& r : w.ranks) EXPECT_EQ(r->wait(300), 0) << r->output();
}

TEST(Process, ThreadsCommunicateWhereTheyWereHandedTheRank) {
  World w(2, "threads");
  for (int r : {0, 1}) {
    EXPECT_EQ(w[r].wait(), 0) << w[r].output();
    EXPECT_HAS(w[r].output(), "a second thread of rank " + std::to_string(r) + " of 2 communicates.");
  }
}

TEST(Process, MismatchIsShownOnEveryRank) {
  World w(3, "mismatch");
  for (auto& r : w.ranks) {
    EXPECT_EQ(r->wait(), 1);
    EXPECT_HAS(r->output(), "ranks 0, 2 called all_reduce [2] float32 (8 bytes); rank 1 called all_gather [2] float32");
  }
}

TEST(Process, ARankThatThrowsTellsTheOthers) {
  World w(3, "throw");
  for (int r : {0, 2}) {
    EXPECT_EQ(w[r].wait(), 1);
    EXPECT_HAS(w[r].output(), "barrier: rank 1 has failed: the milk is sour");
  }
}

TEST(Process, ARankThatLeavesEarlyIsNamed) {
  World w(2, "leave");
  EXPECT_EQ(w[0].wait(), 1);
  EXPECT_HAS(w[0].output(), "barrier: rank 1 has exited without joining this call");
}

TEST(Process, RankZeroMayLeaveFirst) {
  World w(3, "rank0_leaves");
  for (auto& r : w.ranks) EXPECT_EQ(r->wait(), 0) << r->output();
  EXPECT_LT(w[0].seconds(), w[1].seconds());
}

TEST(Process, AKilledRankIsNamedSoon) {
  World w(3, "die");
  EXPECT_EQ(w[1].wait(), 128 + SIGKILL);
  for (int r : {0, 2}) {
    EXPECT_EQ(w[r].wait(), 1);
    EXPECT_LT(w[r].seconds() - w[1].seconds(), 1.0);
    EXPECT_HAS(w[r].output(), "all_reduce: rank 1 was killed or has crashed");
  }
}

TEST(Process, ALateRankIsNamed) {
  World w(2, "sleep", {{"HOLON_COMM_TIMEOUT_S", "1"}});
  EXPECT_EQ(w[0].wait(20), 1);
  EXPECT_HAS(w[0].output(), "all_reduce: rank 1 did not arrive within 1 s (group [0, 1], call 2, [100000] float32");
}

TEST(Process, AStoppedRankIsNamed) {
  World w(2, "work", {{"HOLON_COMM_TIMEOUT_S", "1"}});
  ASSERT_TRUE(w[0].wait_for_output("ready"));
  w[1].send_signal(SIGSTOP);
  EXPECT_EQ(w[0].wait(20), 1);
  EXPECT_HAS(w[0].output(), "rank 1 did not arrive");
  EXPECT_HAS(w[0].output(), "Rank 1 is stopped");
  EXPECT_HAS(w[0].output(), "kill -CONT " + std::to_string(w[1].pid()));
  w[1].send_signal(SIGCONT);
  EXPECT_EQ(w[1].wait(20), 1);
  EXPECT_HAS(w[1].output(), "rank 1 did not arrive");
}

// Rank 0 serves the store: what others would tell it must not hold them up.
TEST(Process, WhoGivesUpTheRendezvousSaysWhoIsTheCause) {
  World w(3, "stop_in_exchange", {{"HOLON_LOG", "comm"}});
  ASSERT_TRUE(w[2].wait_for_output("the world of 3 ranks on 1 host is connected", 60)) << w[2].output();
  w[1].send_signal(SIGKILL);
  EXPECT_EQ(w[0].wait(), 1);
  EXPECT_EQ(w[2].wait(), 1);
  const std::string cause = "rank 1 (process " + std::to_string(w[1].pid()) + ") has ended while the world was forming";
  EXPECT_HAS(w[0].output(), cause);
  // Rank 2 waits for both: it may see rank 1's end before rank 0 has told it. That rank 0 was killed it never says.
  const auto says = [&](const std::string& text) { return w[2].output().find(text) != std::string::npos; };
  EXPECT_TRUE(says("barrier: rank 0 has failed: " + cause) ||
              says("barrier: rank 1 was killed or has crashed (process " + std::to_string(w[1].pid()) + " is gone)"))
      << w[2].output();
}

TEST(Process, WhoHasFailedAndGoneWasNotKilled) {
  World w(2, "fail_and_go");
  EXPECT_EQ(w[1].wait(), 1);
  EXPECT_EQ(w[0].wait(), 0) << w[0].output();
  EXPECT_HAS(w[0].output(), "finds that rank 1 has failed: the milk is sour");
}

TEST(Process, AStoppedRankZeroHoldsNobodyUp) {
  World w(2, "work", {{"HOLON_COMM_TIMEOUT_S", "1"}});
  ASSERT_TRUE(w[1].wait_for_output("ready"));
  w[0].send_signal(SIGSTOP);
  auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(w[1].wait(20), 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  EXPECT_HAS(w[1].output(), "Rank 0 is stopped");
  w[0].send_signal(SIGKILL);
}

TEST(Process, AnExceptionThatNobodyCatchesIsTold) {
  World w(2, "uncaught");
  EXPECT_EQ(w[1].wait(20), 128 + SIGABRT);
  EXPECT_EQ(w[0].wait(20), 1);
  EXPECT_HAS(w[0].output(), "rank 1 has failed: an exception was not caught: the milk is sour");
}

TEST(Process, AnExitStatusIsTold) {
  World w(2, "exit_badly");
  EXPECT_EQ(w[1].wait(20), 5);
  EXPECT_EQ(w[0].wait(20), 1);
  EXPECT_HAS(w[0].output(), "barrier: rank 1 has failed: it has exited with status 5");
}

TEST(Rendezvous, MissingRanksAreNamed) {
  World w(0, "");
  for (int r : {0, 2}) w.start(r, 4, "barrier", {{"HOLON_RENDEZVOUS_TIMEOUT_S", "1.5"}});
  for (auto& r : w.ranks) {
    EXPECT_EQ(r->wait(20), 1);
    EXPECT_HAS(r->output(), "within 1.5 s");
  }
  EXPECT_HAS(w[0].output() + w[1].output(), "missing: 1, 3.");
}

TEST(Rendezvous, WithoutRankZeroTheAddressIsNamed) {
  World w(0, "");
  w.start(1, 2, "barrier", {{"HOLON_RENDEZVOUS_TIMEOUT_S", "0.3"}});
  EXPECT_EQ(w[0].wait(20), 1);
  EXPECT_HAS(w[0].output(), "no store answers at 127.0.0.1:" + std::to_string(w.port));
}

TEST(Rendezvous, PortInUse) {
  World w(0, "");
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  a.sin_port = htons(static_cast<uint16_t>(w.port));
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  ASSERT_EQ(listen(fd, 5), 0);
  w.start(0, 2, "barrier", {});
  EXPECT_EQ(w[0].wait(20), 1);
  EXPECT_HAS(w[0].output(), "port " + std::to_string(w.port) + " of 127.0.0.1 is in use");
  close(fd);
}

TEST(Rendezvous, TheSameRankTwice) {
  World w(0, "");
  w.start(0, 3, "barrier", {});
  w.start(1, 3, "barrier", {});
  w.start(1, 3, "barrier", {});
  int first = 0;
  // One of both is refused; the world comes together with the other.
  for (int i = 0; i < 1000 && !first; ++i) {
    for (int k : {1, 2})
      if (w[k].wait_for_output("error", 0.01)) first = k;
  }
  ASSERT_NE(first, 0);
  EXPECT_EQ(w[first].wait(20), 1);
  EXPECT_HAS(w[first].output(), "rank 1 of 3 is at 127.0.0.1");
  EXPECT_HAS(w[first].output(), "already: process " + std::to_string(w[3 - first].pid()));
  w.start(2, 3, "barrier", {});
  EXPECT_EQ(w[0].wait(20), 0) << w[0].output();
  EXPECT_EQ(w[3 - first].wait(20), 0);
}

TEST(Rendezvous, DifferentWorldSizes) {
  World w(0, "");
  w.start(0, 2, "barrier", {});
  w.start(1, 3, "barrier", {});
  for (auto& r : w.ranks) {
    EXPECT_EQ(r->wait(20), 1);
    EXPECT_HAS(r->output(), "disagree on WORLD_SIZE: rank ");
    EXPECT_HAS(r->output(), "rank 1 of 3");
  }
}

// 192.0.2.1 is nobody's address. It is said at once, and not when the rendezvous has timed out.
TEST(Rendezvous, SeveralHostsWithoutAToken) {
  World several(2, "barrier", {{"MASTER_ADDR", "192.0.2.1"}, {"LOCAL_WORLD_SIZE", "1"}});
  for (auto& r : several.ranks) {
    EXPECT_EQ(r->wait(), 1);
    EXPECT_HAS(r->output(), "ranks on several hosts need a token");
    EXPECT_HAS(r->output(), "HOLON_STORE_TOKEN");
    EXPECT_LT(r->seconds(), 50);
  }
  World elsewhere(2, "barrier", {{"MASTER_ADDR", "192.0.2.1"}});
  for (auto& r : elsewhere.ranks) {
    EXPECT_EQ(r->wait(), 1);
    EXPECT_HAS(r->output(), "MASTER_ADDR \"192.0.2.1\" is not an address of this host (it has ");
  }
}

TEST(Rendezvous, WrongToken) {
  World w(0, "");
  w.start(0, 2, "barrier", {{"HOLON_STORE_TOKEN", "blue"}});
  w.start(1, 2, "barrier", {{"HOLON_STORE_TOKEN", "red"}});
  EXPECT_EQ(w[1].wait(20), 1);
  EXPECT_HAS(w[1].output(), "refused this rank: its token is different");
  w.start(1, 2, "barrier", {{"HOLON_STORE_TOKEN", "blue"}});
  EXPECT_EQ(w[0].wait(20), 0) << w[0].output();
  EXPECT_EQ(w[2].wait(20), 0) << w[2].output();
}

}  // namespace
}  // namespace holon::comm::test
