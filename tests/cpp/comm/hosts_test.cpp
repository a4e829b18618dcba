// Groups across hosts, which here are threads that play at it: values, bytes that cross, and failures.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/hosts/schedule.h"
#include "holon/comm/run_ranks.h"
#include "tests/cpp/comm/collective_cases.h"
#include "tests/cpp/comm/messages.h"

namespace holon::comm {
namespace {

using test::messages;

const std::vector<std::vector<int>> kHosts = {{0, 1},       {0, 0, 1, 1}, {0, 1, 2},
                                              {0, 1, 0, 1}, {0, 0, 0, 1}, {0, 0, 1, 2, 2}};

Communicator& everybody() {
  std::vector<int> all(static_cast<size_t>(Context::current().world_size()));
  std::iota(all.begin(), all.end(), 0);
  return communicator(all);
}

TEST(Hosts, EveryCollective) {
  for (auto& hosts : kHosts)
    run_ranks(hosts, [&](int rank) {
      for (int d = 0; d < kComputedDTypeCount; ++d) test::check_collectives(everybody(), static_cast<DType>(d));
      test::check_subgroups(rank, static_cast<int>(hosts.size()));
      test::check_byte_counts(everybody());
    });
}

// What crosses between hosts, in all: the least that the operation needs.
TEST(Hosts, BytesThatCross) {
  const std::vector<int> hosts = {0, 0, 0, 1, 1, 1};
  const int n = 6;
  const int64_t count = 6 * 3000, bytes = count * 4;
  std::vector<std::vector<uint64_t>> received(static_cast<size_t>(n));
  run_ranks(hosts, [&](int rank) {
    auto& g = everybody();
    std::vector<float> in(static_cast<size_t>(count), 1), out(static_cast<size_t>(count));
    std::vector<int64_t> counts(static_cast<size_t>(n), count / n);
    auto measure = [&](auto&& f) {
      uint64_t before = stats().bytes_received;
      f();
      received[static_cast<size_t>(rank)].push_back(stats().bytes_received - before);
    };
    measure([&] { g.all_reduce(in.data(), out.data(), count, float32); });
    measure([&] { g.reduce_scatter(in.data(), out.data(), counts, float32); });
    measure([&] { g.all_gather(in.data(), out.data(), counts, float32); });
    measure([&] { g.broadcast(in.data(), count, float32, 1); });
    measure([&] { g.all_to_all(in.data(), out.data(), counts, counts, float32); });
  });
  auto total = [&](size_t what, int from, int to) {
    uint64_t sum = 0;
    for (int r = from; r < to; ++r) sum += received[static_cast<size_t>(r)][what];
    return static_cast<int64_t>(sum);
  };
  // Each host receives half of the sums' addends, and half of the sums.
  EXPECT_EQ(total(0, 0, 3), bytes);
  EXPECT_EQ(total(0, 3, 6), bytes);
  EXPECT_EQ(received[0][0], received[1][0]) << "one stream for each rank";
  EXPECT_EQ(total(1, 0, 6), bytes);
  EXPECT_EQ(total(2, 0, 6), bytes);
  EXPECT_EQ(total(3, 0, 3), 0);
  EXPECT_EQ(total(3, 3, 6), bytes);
  // All elements that change hosts, and the counts before them.
  EXPECT_GE(total(4, 0, 6), 6 * bytes / 2);
  EXPECT_LT(total(4, 0, 6), 6 * bytes / 2 + 40000);
}

TEST(Hosts, ARegionThatSeveralWantCrossesOnce) {
  const std::vector<int> hosts = {0, 1, 1, 1};
  auto pulls_of = [](int m) {
    return m == 0 ? std::vector<Pull>{} : std::vector<Pull>{{{0}, 5, {10, 1}, 0, {4, 1}, {3, 4}}};
  };
  auto sender = make_schedule(hosts, 0, pulls_of, 4, 4 << 20);
  ASSERT_EQ(sender.send.size(), 1u);
  EXPECT_EQ(sender.send[0].elements, 12);
  int receivers = 0;
  for (int m = 1; m < 4; ++m) {
    auto s = make_schedule(hosts, m, pulls_of, 4, 4 << 20);
    receivers += static_cast<int>(s.receive.size());
    EXPECT_TRUE(s.reads_staged);
    ASSERT_EQ(s.pulls.size(), 1u);
    EXPECT_EQ(s.pulls[0].terms[0].holder, sender.send[0].peer);
  }
  EXPECT_EQ(receivers, 1);
}

TEST(Hosts, AddendsAreSummedBeforeTheyCross) {
  const std::vector<int> hosts = {0, 0, 1, 1};
  auto pulls_of = [](int m) { return std::vector{row_pull({0, 1, 2, 3}, m * 8, 0, 8)}; };
  for (int m = 0; m < 4; ++m) {
    auto s = make_schedule(hosts, m, pulls_of, 4, 4 << 20);
    ASSERT_EQ(s.send.size(), 1u) << "each rank sends one sum";
    EXPECT_EQ(s.send[0].addends, (m < 2 ? std::vector{0, 1} : std::vector{2, 3}));
    EXPECT_EQ(s.send[0].peer % 2, m % 2);
    EXPECT_EQ(s.receive.size(), 1u);
    ASSERT_EQ(s.pulls[0].terms.size(), 2u);
    EXPECT_EQ(s.pulls[0].terms[0].owners.empty(), m >= 2) << "host 0 comes first everywhere";
  }
}

TEST(Hosts, LargeRegionsTravelInPieces) {
  const int64_t rows = 3000, columns = 1500;  // 18 MB
  run_ranks(std::vector{0, 0, 1, 1}, [&](int rank) {
    auto& g = everybody();
    std::vector<float> in(static_cast<size_t>(rows * columns)), out(in.size());
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(static_cast<int>(i % 1000) + rank);
    g.all_reduce(in.data(), out.data(), rows * columns, float32);
    for (size_t i = 0; i < in.size(); ++i)
      if (out[i] != static_cast<float>(4 * static_cast<int>(i % 1000) + 6)) fail_runtime("element {} is {}", i, out[i]);
    g.broadcast(in.data(), rows * columns, float32, 1);
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i] != static_cast<float>(static_cast<int>(i % 1000) + 1)) fail_runtime("element {} is {}", i, in[i]);
  });
  // Half of the columns, from the other host: pieces of rows.
  auto pulls_of = [&](int m) {
    return m == 0 ? std::vector<Pull>{}
                  : std::vector<Pull>{{{0}, columns / 2, {columns, 1}, 0, {columns / 2, 1}, {rows, columns / 2}}};
  };
  for (auto [piece_bytes, pieces] : {std::pair{4 << 20, 3}, {1 << 20, 9}}) {
    auto s = make_schedule(std::vector{0, 1}, 1, pulls_of, 4, piece_bytes);
    ASSERT_EQ(s.receive.size(), static_cast<size_t>(pieces));
    EXPECT_TRUE(s.direct);
    int64_t elements = 0;
    for (auto& p : s.receive) {
      EXPECT_EQ(p.at, elements);
      EXPECT_LE(p.elements * 4, piece_bytes);
      elements += p.elements;
    }
    EXPECT_EQ(elements, rows * columns / 2);
  }
}

TEST(Hosts, DifferentCallsAreShownOnEveryRank) {
  auto heard = messages(std::vector{0, 0, 1, 1}, [](int rank) {
    auto& g = everybody();
    g.barrier();
    set_call_site(rank >= 2 ? "train.py:31" : "train.py:30");
    float x[4] = {}, y[16];
    std::vector<int64_t> counts(4, 4);
    if (rank >= 2)
      g.all_gather(x, y, counts, float32);
    else
      g.all_reduce(x, y, 4, float32);
  });
  for (auto& text : heard) {
    EXPECT_HAS(text, "the ranks disagree on what to call");
    EXPECT_HAS(text, "called all_reduce [4] float32 (16 bytes) at train.py:30");
    EXPECT_HAS(text, "called all_gather [4] float32 (16 bytes) at train.py:31");
  }
}

TEST(Hosts, ALateHostIsNamed) {
  setenv("HOLON_COMM_TIMEOUT_S", "0.5", 1);
  auto start = std::chrono::steady_clock::now();
  auto heard = messages(std::vector{0, 0, 1, 1}, [](int rank) {
    auto& g = everybody();
    g.barrier();
    if (rank >= 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      return;
    }
    std::vector<float> x(2000), y(2000);
    g.all_reduce(x.data(), y.data(), 2000, float32);
  });
  unsetenv("HOLON_COMM_TIMEOUT_S");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(2500));
  for (int rank : {0, 1}) {
    auto& text = heard[static_cast<size_t>(rank)];
    EXPECT_HAS(text, "all_reduce");
    EXPECT_HAS(text, "[2, 3] on host 1");
  }
}

// Rank 1 has what it wants from its host's memory, and nobody waits for it: it may leave while rank 0 still waits for
// the other host.
TEST(Hosts, ARankThatHasEndedIsNotMissedByThoseWhoWaitForASlowHost) {
  std::atomic<bool> left = false;
  auto heard = messages(std::vector{0, 0, 1}, [&](int rank) {
    auto& g = everybody();
    g.barrier();
    // Long enough for rank 0 to look for trouble several times.
    if (rank == 2) {
      while (!left) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    float x[2] = {rank == 0 ? 3.f : 0.f, rank == 0 ? 4.f : 0.f};
    g.broadcast(x, 2, float32, 0);
    if (rank == 1) left = true;
    if (x[0] != 3 || x[1] != 4) fail_runtime("it is {} {}", x[0], x[1]);
  });
  for (auto& text : heard) EXPECT_EQ(text, "");
}

TEST(Hosts, ARankThatEndsWithoutTheCallIsNamedOnAllHosts) {
  auto heard = messages(std::vector{0, 0, 1}, [](int rank) {
    auto& g = everybody();
    g.barrier();
    float x[2] = {};
    if (rank != 1) g.broadcast(x, 2, float32, 0);
  });
  EXPECT_HAS(heard[0], "rank 1 has ended without joining this call");
  EXPECT_HAS(heard[2], "rank 1 has ended without joining this call");
}

TEST(Hosts, ARankThatFailsIsNamedOnTheOtherHosts) {
  auto heard = messages(std::vector{0, 1, 1}, [](int rank) {
    everybody().barrier();
    if (rank == 2) {
      abort_world("the milk is sour");
      return;
    }
    everybody().barrier();
  });
  EXPECT_HAS(heard[0], "rank 2 has failed: the milk is sour");
  EXPECT_HAS(heard[1], "rank 2 has failed: the milk is sour");
}

}  // namespace
}  // namespace holon::comm
