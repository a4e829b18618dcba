#include "holon/boxing/point_to_point.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <memory>
#include <random>
#include <vector>

#include "boxing/allocations.h"
#include "boxing/point_to_point_cases.h"
#include "boxing/specs.h"
#include "comm/messages.h"
#include "comm/processes.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"

namespace holon::boxing {
namespace {

using namespace testing_boxing;
using comm::test::messages;

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), B = sbp::broadcast(), P = sbp::partial_sum();

const GlobalSpec* on(std::vector<int64_t> ranks, Sbp s) { return intern_spec(Placement("cpu", std::move(ranks)), s); }

// Sets a variable for a scope. No rank runs while it changes.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

std::vector<std::unique_ptr<comm::test::Process>> processes(int n, const std::string& mode) {
  const int port = comm::test::free_port();
  std::vector<std::unique_ptr<comm::test::Process>> ranks;
  for (int r = 0; r < n; ++r) {
    auto variables = comm::test::rank_environment(r, n, port);
    variables["HOLON_MACHINE_COSTS"] = "fixed";
    ranks.push_back(
        std::make_unique<comm::test::Process>(std::vector<std::string>{BOXING_RANK_PROGRAM, mode}, variables));
  }
  return ranks;
}

TEST(PointToPoint, EqualsExecute) {
  comm::run_ranks(4, [](int) { check_transfers(); });
}

TEST(PointToPoint, EqualsExecuteBetweenProcesses) {
  for (auto& r : processes(4, "point_to_point")) EXPECT_EQ(r->wait(120), 0) << r->output();
}

TEST(PointToPoint, PrivateMemoryIsCopied) {
  for (auto& r : processes(2, "private_memory")) EXPECT_EQ(r->wait(60), 0) << r->output();
}

TEST(PointToPoint, OnSeveralHosts) {
  for (auto& hosts : {std::vector<int>{0, 1, 0, 1}, {0, 0, 1, 1}, {0, 1, 2, 0}})
    comm::run_ranks(hosts, [](int) { check_transfers_between_hosts(); });
}

TEST(PointToPoint, APipelineInTheOrderOf1F1B) {
  for (int stages : {2, 4}) comm::run_ranks(stages, [=](int) { check_pipeline(stages, 8); });
  comm::run_ranks(4, [](int) { check_pipeline(4, 3); });
}

TEST(PointToPoint, APipelineOfProcesses) {
  for (auto& r : processes(4, "pipeline")) EXPECT_EQ(r->wait(60), 0) << r->output();
}

TEST(PointToPoint, APipelineOverSeveralHosts) {
  const std::vector<int> hosts = {0, 1, 1, 0};
  comm::run_ranks(hosts, [](int) { check_pipeline(4, 8); });
}

// Sends of many objects are outstanding and received in another order.
TEST(PointToPoint, ObjectsDoNotKnowOfEachOther) {
  for (Dims shape : {Dims{4, 6}, Dims{64, 64}})
    comm::run_ranks(4, [&](int rank) {
      auto *from = on({0, 1}, S0), *to = on({3, 2}, S1);
      constexpr int kObjects = 20;
      std::vector<PointToPoint> objects;
      std::vector<Array> ins, outs;
      for (int i = 0; i < kObjects; ++i) {
        objects.push_back(PointToPoint::prepare(from, to, shape, float32, i));
        ins.push_back(garbage(rank < 2, objects[0].in_shape(), float32));
        outs.push_back(garbage(rank >= 2, objects[0].out_shape(), float32));
      }
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int round = 0; round < 30; ++round) {
        std::vector<size_t> order(kObjects);
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        for (size_t i : order) {
          objects[i].release();
          if (ins[i].defined())
            std::fill_n(ins[i].data<float>(), ins[i].numel(), static_cast<float>(100 * round) + static_cast<float>(i));
          objects[i].send(ins[i], {});
        }
        for (size_t i : order) {
          objects[i].receive(outs[i], {});
          for (int64_t k = 0; outs[i].defined() && k < outs[i].numel(); ++k)
            ASSERT_EQ(outs[i].data<float>()[k], static_cast<float>(100 * round) + static_cast<float>(i));
        }
      }
      for (auto& h : objects) h.release();
    });
}

TEST(PointToPoint, SmallPostsAreFreeAtOnceAndLargeOnesWhenTaken) {
  comm::run_ranks(2, [](int rank) {
    auto small = PointToPoint::prepare(on({0}, B), on({1}, B), {4, 4}, float32, 0);
    auto large = PointToPoint::prepare(on({0}, B), on({1}, B), {64, 64}, float32, 1);
    std::vector<int> both = {0, 1};
    const Array a = garbage(true, {4, 4}, float32), b = garbage(true, {64, 64}, float32);
    EXPECT_TRUE(large.try_release());
    small.send(a, {});
    large.send(b, {});
    if (rank == 0) {
      EXPECT_TRUE(small.try_release());
      EXPECT_FALSE(large.try_release());
    }
    comm::communicator(both).barrier();
    small.receive(a, {});
    large.receive(b, {});
    comm::communicator(both).barrier();
    EXPECT_TRUE(large.try_release());
  });
}

// The source's ranks sum first, the target's gather afterwards, or nothing crosses at all.
TEST(PointToPoint, StepsBeforeAndAfterTheCrossing) {
  int before_count = 0, after_count = 0;
  comm::run_ranks(4, [&](int rank) {
    for (Sbp a : {S0, S1, B, P}) {
      const Dims shape = a == P ? Dims{1000, 1000} : Dims{100, 100};  // so large that summing first pays
      for (Sbp b : {S0, S1, B, P})
        for (auto [from, to] : {std::pair{on({0, 1}, a), on({2, 3}, b)},
                                {on({0, 1, 2}, a), on({3}, b)},
                                {on({0}, a), on({1, 2, 3}, b)},
                                {on({0, 1, 2}, a), on({1, 2, 3}, b)},
                                {on({0, 1}, a), on({0, 1}, b)}}) {
          auto h = PointToPoint::prepare(from, to, shape, float32, 0);
          if (rank == 0) before_count += h.send_communicates(), after_count += h.receive_communicates();
          ASSERT_EQ(transfer_is_wrong(from, to, shape, float32, 0, false), "") << from->str() << to->str();
        }
    }
    auto *from = on({0, 1, 2}, B), *to = on({1, 0}, S0);
    ASSERT_EQ(transfer_is_wrong(from, to, {30, 20}, float32, 0, true), "");
  });
  EXPECT_GT(before_count, 0);
  EXPECT_GT(after_count, 0);
}

TEST(PointToPoint, AllocatesNothing) {
  comm::run_ranks(3, [](int) {
    for (Dims shape : {Dims{6, 5}, Dims{70, 50}})
      for (auto [from, to] : {std::pair{on({0}, B), on({1, 2}, S0)},
                              {on({0, 1}, P), on({2}, B)},
                              {on({0, 1}, S1), on({1, 2}, S0)},
                              {on({0, 1}, P), on({2, 1}, P)}}) {
        const Array in = some_part(from, shape, float32);
        auto h = PointToPoint::prepare(from, to, shape, float32, 0);
        const Array out = garbage(h.has_out(), h.out_shape(), float32);
        auto send_scratch = scratch_of(h.send_scratch_bytes()), receive_scratch = scratch_of(h.receive_scratch_bytes());
        expect_no_allocation(from->str() + to->str(), [&] {
          h.send(in, send_scratch);
          h.receive(out, receive_scratch);
          h.release();
        });
        EXPECT_TRUE(same_bits(out, redistribute(from, to, shape, float32, in)));
      }
  });
}

TEST(PointToPoint, OnTheBackgroundThread) {
  comm::run_ranks(2, [](int) {
    auto *from = on({0}, B), *to = on({1}, B);
    const Array in = some_part(from, {64, 64}, float32);
    auto h = PointToPoint::prepare(from, to, {64, 64}, float32, 0);
    const Array out = garbage(h.has_out(), {64, 64}, float32), expected = redistribute(from, to, {64, 64}, float32, in);
    for (int i = 0; i < 20; ++i) {
      comm::run_in_background([&] {
        h.send(in, {});
        h.receive(out, {});
        h.release();
      }).wait();
      ASSERT_TRUE(same_bits(out, expected));
    }
  });
}

// Calls f and counts down when it has thrown.
template <class F>
void fails(std::latch& latch, F&& f) {
  try {
    f();
  } catch (const Error&) {
    latch.count_down();
    throw;
  }
}

TEST(PointToPoint, ARankThatDoesNotPostIsNamed) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.5");
  std::latch failed(1);
  auto heard = messages(3, [&](int rank) {
    auto h = PointToPoint::prepare(on({0, 1}, S0), on({2}, B), {64, 64}, float32, 5);
    const Array in = garbage(rank < 2, {32, 64}, float32), out = garbage(rank == 2, {64, 64}, float32);
    comm::set_call_site("stage.py:12");
    if (rank == 0) h.send(in, {});
    if (rank == 2) fails(failed, [&] { h.receive(out, {}); });
    failed.wait();
    rank == 0 ? h.release() : h.send(in, {});  // too late
  });
  for (auto& text : heard)
    EXPECT_HAS(text,
               "exchange S(0) -> B: rank 1 did not send within 0.5 s (transfer [0, 1] -> [2], channel 5, receive 1, "
               "[64, 64] float32, 16384 bytes, at stage.py:12). Rank 1 ");
  for (int r : {0, 1}) EXPECT_HAS(heard[static_cast<size_t>(r)], "(found by rank 2)");
}

TEST(PointToPoint, ARankThatDoesNotTakeIsNamed) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.5");
  std::latch failed(1);
  auto heard = messages(3, [&](int rank) {
    auto h = PointToPoint::prepare(on({0}, B), on({1, 2}, S0), {64, 64}, float32, 5);
    const Array in = garbage(rank == 0, {64, 64}, float32), out = garbage(rank > 0, {32, 64}, float32);
    h.send(in, {});
    if (rank == 1) h.receive(out, {});
    if (rank == 0) fails(failed, [&] { h.release(); });
    failed.wait();
    h.receive(out, {});
  });
  EXPECT_HAS(heard[0],
             "rank 2 did not receive within 0.5 s (transfer [0] -> [1, 2], channel 5, send 1, [64, 64] float32");
  for (int r : {1, 2}) {
    EXPECT_HAS(heard[static_cast<size_t>(r)], "rank 2 did not receive");
    EXPECT_HAS(heard[static_cast<size_t>(r)], "(found by rank 0)");
  }
}

TEST(PointToPoint, ARankThatHasEndedIsNamedAtOnce) {
  auto start = std::chrono::steady_clock::now();
  auto heard = messages(2, [](int rank) {
    auto h = PointToPoint::prepare(on({0}, B), on({1}, B), {64, 64}, float32, 5);
    const Array a = garbage(true, {64, 64}, float32);
    h.send(a, {});
    h.receive(a, {});
    h.release();
    if (rank == 1) h.receive(a, {});
  });
  EXPECT_EQ(heard[0], "");
  EXPECT_HAS(heard[1], "rank 0 has ended without sending (transfer [0] -> [1], channel 5, receive 2, [64, 64] float32");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(PointToPoint, AFailureElsewhereWakesWhoWaits) {
  auto start = std::chrono::steady_clock::now();
  std::vector<std::string> heard(3);
  EXPECT_THROW(comm::run_ranks(3,
                               [&](int rank) {
                                 auto there = PointToPoint::prepare(on({2}, B), on({1}, B), {64, 64}, float32, 0);
                                 auto back = PointToPoint::prepare(on({0}, B), on({2}, B), {64, 64}, float32, 0);
                                 const Array a = garbage(true, {64, 64}, float32);
                                 try {
                                   if (rank == 1) there.receive(a, {});
                                   if (rank == 0) back.send(a, {}), back.release();
                                 } catch (const Error& e) {
                                   heard[static_cast<size_t>(rank)] = e.what();
                                 }
                                 if (rank == 2) fail_runtime("the milk is sour");
                               }),
               Error);
  for (int r : {0, 1}) EXPECT_HAS(heard[static_cast<size_t>(r)], "rank 2 has failed: the milk is sour (transfer [");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(PointToPoint, AnotherShapeOrDTypeIsShownToAll) {
  for (bool dtype : {false, true})
    for (int64_t side : {4, 64}) {
      std::latch failed(1);
      auto heard = messages(2, [&](int rank) {
        const Dims shape = {side, rank && !dtype ? side + 1 : side};
        const DType type = rank && dtype ? int32 : float32;
        auto h = PointToPoint::prepare(on({0}, B), on({1}, B), shape, type, 5);
        comm::set_call_site(rank ? "b.py:2" : "a.py:1");
        const Array a = garbage(true, shape, type);
        h.send(a, {});
        if (rank == 1) fails(failed, [&] { h.receive(a, {}); });
        failed.wait();
        h.send(a, {});
      });
      const char* on_what = dtype ? "the ranks disagree on dtype: rank 0 sent exchange B -> B"
                                  : "the ranks disagree on the call's arguments: rank 0 sent exchange B -> B";
      EXPECT_HAS(heard[1], on_what);
      EXPECT_HAS(heard[0], on_what);
      EXPECT_HAS(heard[0], "(found by rank 1)");
      EXPECT_HAS(heard[1],
                 fmt::format("[{}, {}] float32 ({} bytes) at a.py:1; rank 1 expects exchange B -> B", side, side,
                             side * side * 4));
    }
}

TEST(PointToPoint, MistakesInTheOrderOfCallsAreErrors) {
  auto heard = messages(2, [](int rank) {
    auto h = PointToPoint::prepare(on({0, 1}, S0), on({0}, B), {64, 64}, float32, 5);
    if (rank == 0) h.receive(garbage(true, h.out_shape(), float32), {});
  });
  EXPECT_HAS(heard[0], "rank 0 receives what it has not sent yet");
  heard = messages(1, [](int) { PointToPoint::prepare(on({0}, B), on({0}, B), {4}, float32, -1); });
  EXPECT_HAS(heard[0], "a channel must be 0 or more");
  for (int mistake : {0, 1, 2}) {
    heard = messages(1, [&](int) {
      auto h = PointToPoint::prepare(on({0}, B), on({0}, B), {4}, float32, 0);
      const Array a = garbage(true, {4}, float32), b = garbage(true, {4}, float32);
      if (mistake == 0) h.receive(b, {});
      h.send(a, {});
      EXPECT_FALSE(h.try_release());
      if (mistake == 1) h.release();
      h.send(a, {});
    });
    EXPECT_HAS(heard[0], mistake == 0 ? "receives what it has not sent yet" : "Receive first");
  }
}

TEST(PointToPoint, OnSeveralHostsAnotherShapeIsShownToAll) {
  auto heard = messages(std::vector<int>{0, 1}, [&](int rank) {
    const Dims shape = {64, rank ? 65 : 64};
    auto h = PointToPoint::prepare(on({0}, B), on({1}, B), shape, float32, 5);
    const Array a = garbage(true, shape, float32);
    h.send(a, {});
    h.receive(a, {});
    h.send(a, {});
  });
  for (auto& text : heard) EXPECT_HAS(text, "the ranks disagree on the call's arguments: rank 0 sent");
}

TEST(PointToPoint, OnSeveralHostsALateRankIsNamed) {
  Environment limit("HOLON_COMM_TIMEOUT_S", "0.5");
  auto heard = messages(std::vector<int>{0, 1}, [&](int rank) {
    auto h = PointToPoint::prepare(on({0}, B), on({1}, B), {64, 64}, float32, 5);
    const Array a = garbage(true, {64, 64}, float32);
    if (rank == 1) h.receive(a, {});
  });
  EXPECT_HAS(heard[1], "rank 0 on host 0 did not send within 0.5 s (transfer [0] -> [1], channel 5, receive 1");
}

TEST(PointToPoint, AKilledRankIsNamedSoon) {
  auto ranks = processes(2, "die");
  EXPECT_EQ(ranks[1]->wait(60), 128 + SIGKILL);
  EXPECT_EQ(ranks[0]->wait(60), 1);
  EXPECT_HAS(ranks[0]->output(), "exchange B -> B: rank 1 was killed or has crashed");
  EXPECT_HAS(ranks[0]->output(), " without sending (transfer [1] -> [0], channel 7, receive 4, [64, 64] float32");
  EXPECT_LT(ranks[0]->seconds() - ranks[1]->seconds(), 5.0);
}

}  // namespace
}  // namespace holon::boxing
