#include "holon/comm/core/background.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "tests/cpp/comm/collective_cases.h"
#include "tests/cpp/comm/processes.h"

namespace holon::comm {
namespace {

Communicator& whole_world() {
  std::vector<int> ranks(static_cast<size_t>(Context::current().world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return communicator(ranks);
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

class Background : public testing::TestWithParam<int> {};

TEST_P(Background, TheSameGroupIsUsedByBothThreads) {
  const int n = GetParam();
  run_ranks(n, [&](int rank) {
    constexpr int64_t kCount = 50'000;
    for (int round = 0; round < 20; ++round) {
      std::vector<float> a(kCount, static_cast<float>(rank + round)), b(a), sum_a(kCount), sum_b(kCount);
      Work work = run_in_background([&] { whole_world().all_reduce(a.data(), sum_a.data(), kCount, float32); });
      // Another number of other calls, in the same group.
      for (int i = 0; i <= round % 3; ++i) whole_world().all_reduce(b.data(), sum_b.data(), kCount - i, float32);
      whole_world().barrier();
      work.wait();
      EXPECT_TRUE(work.done());
      const auto expected = static_cast<float>(n * (n - 1) / 2 + n * round);
      for (int64_t i = 0; i < kCount; i += 999) ASSERT_EQ(sum_a[static_cast<size_t>(i)], expected);
      ASSERT_EQ(sum_a, sum_b) << round;
    }
  });
}

TEST_P(Background, EveryCollectiveWorksThere) {
  run_ranks(GetParam(), [&](int) {
    auto work = run_in_background([] { test::check_collectives(whole_world(), bfloat16); });
    test::check_collectives(whole_world(), float32);
    work.wait();
  });
}

TEST_P(Background, JobsRunInOrderAndSeeTheRank) {
  run_ranks(GetParam(), [&](int rank) {
    std::vector<int> order;
    std::vector<Work> works;
    for (int i = 0; i < 50; ++i)
      works.push_back(run_in_background([&, i] {
        EXPECT_EQ(Context::current().rank(), rank);
        order.push_back(i);
      }));
    works.back().wait();
    for (auto& w : works) EXPECT_TRUE(w.done());
    for (int i = 0; i < 50; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
    Work().wait();
    EXPECT_TRUE(Work().done());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Background, testing::Values(1, 2, 5));

TEST(Background, RanksOnSeveralHosts) {
  std::vector<int> hosts = {0, 0, 1};
  run_ranks(hosts, [](int) {
    for (int round = 0; round < 5; ++round) {
      auto work = run_in_background([] { test::check_collectives(whole_world(), float16); });
      test::check_collectives(whole_world(), float32);
      work.wait();
    }
  });
}

TEST(Background, BytesCountWhenWaitedFor) {
  run_ranks(2, [](int) {
    std::vector<float> x(10'000, 1), y(10'000);
    const CommStats before = stats();
    auto work = run_in_background([&] { whole_world().all_reduce(x.data(), y.data(), 10'000, float32); });
    work.wait();
    work.wait();  // counts once
    EXPECT_EQ(stats().calls - before.calls, 1u);
    EXPECT_EQ(stats().bytes_read - before.bytes_read, 40'000u);
  });
}

TEST(Background, ErrorsComeOutOfWait) {
  run_ranks(2, [](int rank) {
    auto failing = run_in_background([] { throw std::out_of_range("the shelf is empty"); });
    EXPECT_THROW(failing.wait(), std::out_of_range);
    EXPECT_THROW(failing.wait(), std::out_of_range);
    // Ranks whose jobs differ hear of it, with the line that gave the job.
    set_call_site("train.py:7");
    auto differing = run_in_background([rank] {
      float x[2] = {}, y[2];
      if (rank == 0)
        whole_world().all_reduce(x, y, 2, float32);
      else
        whole_world().barrier();
    });
    set_call_site("");
    std::string text = message_of([&] { differing.wait(); });
    EXPECT_NE(text.find("the ranks disagree on what to call: rank 0 called all_reduce [2] float32"), std::string::npos)
        << text;
    EXPECT_NE(text.find("at train.py:7"), std::string::npos) << text;
    // The thread and the group go on.
    run_in_background([] { whole_world().barrier(); }).wait();
    whole_world().barrier();
  });
}

TEST(Background, AFailedRankEndsTheWait) {
  auto start = std::chrono::steady_clock::now();
  std::string heard;
  EXPECT_THROW(run_ranks(2,
                         [&](int rank) {
                           whole_world().barrier();
                           if (rank == 1) throw std::runtime_error("no more milk");
                           auto work = run_in_background([] { whole_world().barrier(); });
                           heard = message_of([&] { work.wait(); });
                         }),
               std::runtime_error);
  EXPECT_NE(heard.find("barrier: rank 1 has failed: no more milk"), std::string::npos) << heard;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Background, ALateRankIsNamed) {
  setenv("HOLON_COMM_TIMEOUT_S", "0.3", 1);
  std::atomic<bool> over = false;
  run_ranks(2, [&](int rank) {
    whole_world().barrier();
    if (rank == 0) {
      auto work = run_in_background([] { whole_world().barrier(); });
      std::string text = message_of([&] { work.wait(); });
      EXPECT_NE(text.find("barrier: rank 1 did not arrive within 0.3 s"), std::string::npos) << text;
      over = true;
    } else {
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  unsetenv("HOLON_COMM_TIMEOUT_S");
}

TEST(Background, ARankThatEndsWithoutWaitingIsNamed) {
  std::string heard;
  run_ranks(2, [&](int rank) {
    whole_world().barrier();
    auto work = run_in_background([] { whole_world().barrier(); });
    if (rank == 0) {
      heard = message_of([&] { work.wait(); });  // both have given it, so it may well be done in time
      work = run_in_background([] { whole_world().barrier(); });
      heard += message_of([&] { work.wait(); });
    }
  });
  EXPECT_NE(heard.find("barrier: rank 1 "), std::string::npos) << heard;
}

TEST(Background, Processes) {
  const int n = 3, port = test::free_port();
  std::vector<std::unique_ptr<test::Process>> ranks;
  for (int r = 0; r < n; ++r)
    ranks.push_back(std::make_unique<test::Process>(std::vector<std::string>{RANK_PROGRAM, "background"},
                                                    test::rank_environment(r, n, port)));
  for (auto& r : ranks) EXPECT_EQ(r->wait(), 0) << r->output();
}

// A process may end while its second thread is still at work.
TEST(Background, AProcessThatDoesNotWaitEnds) {
  const int n = 2, port = test::free_port();
  std::vector<std::unique_ptr<test::Process>> ranks;
  for (int r = 0; r < n; ++r)
    ranks.push_back(std::make_unique<test::Process>(std::vector<std::string>{RANK_PROGRAM, "background_left"},
                                                    test::rank_environment(r, n, port)));
  EXPECT_EQ(ranks[1]->wait(20), 0) << ranks[1]->output();
  EXPECT_EQ(ranks[0]->wait(20), 1);
  EXPECT_NE(ranks[0]->output().find("all_reduce: rank 1 "), std::string::npos) << ranks[0]->output();
}

}  // namespace
}  // namespace holon::comm
