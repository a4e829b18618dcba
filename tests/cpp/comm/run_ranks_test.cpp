#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"

namespace holon::comm {
namespace {

TEST(RunRanks, EachHasItsOwnContext) {
  std::atomic<int> seen{0};
  run_ranks(4, [&](int rank) {
    auto& c = Context::current();
    EXPECT_EQ(c.rank(), rank);
    EXPECT_EQ(c.world_size(), 4);
    EXPECT_EQ(c.local_rank(), rank);
    EXPECT_TRUE(c.ranks_are_threads());
    seen |= 1 << rank;
  });
  EXPECT_EQ(seen, 15);
}

TEST(RunRanks, NoRanksIsAnError) {
  EXPECT_THROW(run_ranks(0, [](int) {}), Error);
}

TEST(RunRanks, HundredsOfWorlds) {
  for (int i = 0; i < 300; ++i)
    run_ranks(1 + i % 4, [&](int) {
      int n = Context::current().world_size();
      std::vector<int> ranks;
      for (int r = 0; r < n; ++r) ranks.push_back(r);
      float x = 1, sum = 0;
      communicator(ranks).all_reduce(&x, &sum, 1, float32);
      EXPECT_EQ(sum, static_cast<float>(n));
    });
}

TEST(RunRanks, TheFirstFailureIsRethrownAndEndsTheOthersWaits) {
  auto start = std::chrono::steady_clock::now();
  std::vector<std::string> heard(3);
  try {
    run_ranks(3, [&](int rank) {
      std::vector<int> ranks = {0, 1, 2};
      auto& g = communicator(ranks);
      g.barrier();
      if (rank == 1) throw std::out_of_range("the shelf is empty");
      try {
        g.barrier();
      } catch (const Error& e) {
        heard[static_cast<size_t>(rank)] = e.what();
        throw;
      }
    });
    FAIL() << "no exception";
  } catch (const std::out_of_range& e) {
    EXPECT_STREQ(e.what(), "the shelf is empty");
  }
  for (int rank : {0, 2})
    EXPECT_NE(heard[static_cast<size_t>(rank)].find("barrier: rank 1 has failed: the shelf is empty"),
              std::string::npos)
        << heard[static_cast<size_t>(rank)];
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(RunRanks, ARankOutsideTheGroupThatFailsEndsTheWaitToo) {
  try {
    run_ranks(3, [&](int rank) {
      if (rank == 2) throw std::runtime_error("no luck");
      std::vector<int> pair = {0, 1};
      if (rank == 0) communicator(pair).barrier();
      if (rank == 1) communicator(pair), std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
    FAIL() << "no exception";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "no luck");
  }
}

}  // namespace
}  // namespace holon::comm
