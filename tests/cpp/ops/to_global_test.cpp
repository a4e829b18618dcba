// What ranks agree on where local values become global tensors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/create.h"
#include "holon/ops/part_metas.h"
#include "holon/ops/to_global.h"
#include "holon/ops/values.h"
#include "tests/cpp/error_of.h"

namespace holon {
namespace {

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (auto& word : words) EXPECT_NE(text.find(word), std::string::npos) << word << " in: " << text;
}

TEST(ToGlobal, PartsThatNobodyComparesAgreeAllTheSame) {
  for (int ranks : {2, 3})
    comm::run_ranks(ranks, [&](int rank) {
      const Placement all = Placement::all("cpu");
      auto whole = [&](const Tensor& part, const Placement& p, const NdSbp& sbp) {
        return to_global(part, p, sbp, {.check_meta = false});
      };
      for (const NdSbp& sbp : {NdSbp(sbp::split(0)), NdSbp(sbp::broadcast()), NdSbp(sbp::partial_sum())}) {
        EXPECT_EQ(whole(ones({2, 3}), all, sbp).shape(), (Dims{sbp.has_split() ? 2 * ranks : 2, 3}));
        expect_words(error_of([&] { whole(ones({2, 4 + rank}), all, sbp); }), {"[2, 4]", "[2, 5]", "check_meta"});
        expect_words(error_of([&] {
                       whole(ones({2, 3}).to(rank ? float64 : float32), all, sbp).sum().item();
                     }),
                     {"to_global", rank ? "check_meta" : ""});
      }
      // A rank outside would have another shape.
      const Placement first("cpu", {0});
      expect_words(error_of([&] { whole(ones({3 + rank}), first, sbp::split(0)); }), {"[3]", "[4]"});
    });
}

TEST(ToGlobal, PartsThatNobodyComparesCostAMessageOnlyWhereTheyChange) {
  comm::run_ranks(2, [&](int) {
    auto calls = [&](const Dims& shape) {
      const uint64_t before = comm::stats().calls;
      to_global(ones(shape), Placement::all("cpu"), sbp::split(0), {.check_meta = false});
      return comm::stats().calls - before;
    };
    EXPECT_EQ(calls({2, 3}), 1u);
    EXPECT_EQ(calls({2, 3}), 0u);
    EXPECT_EQ(calls({2}), 1u);  // samples and labels in turn
    EXPECT_EQ(calls({2, 3}), 1u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(calls({2}), 0u);
      EXPECT_EQ(calls({2, 3}), 0u);
    }
  });
}

// Whatever ranks do in whatever order: a signature is passed without a word only where all ranks have it.
TEST(Foreseen, NeverAgreesToWhatAnotherRankHasNot) {
  uint64_t state = 7;
  auto random = [&](uint64_t n) {
    return (state = state * 6364136223846793005 + 1442695040888963407, state >> 33) % n;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<ops::Foreseen> ranks(3);
    for (int step = 0; step < 30; ++step) {
      std::vector<uint64_t> mine(3, 1 + random(3));
      if (random(8) == 0) mine[random(3)] = 1 + random(3);
      const bool alike = mine[0] == mine[1] && mine[1] == mine[2];
      bool asks = false;
      for (size_t r = 0; r < 3; ++r) asks |= !ranks[r].is(mine[r]);
      EXPECT_TRUE(alike || asks);
      if (!alike) break;  // the ranks that ask raise, and so does what the others exchange next
      for (size_t r = 0; r < 3; ++r) ranks[r].agreed(mine[r]);
    }
  }
}

TEST(ToGlobal, ValuesThatShouldBeAlikeAreComparedOnRequest) {
  setenv("HOLON_CHECK", "1", 1);
  for (int ranks : {2, 3})
    comm::run_ranks(ranks, [&](int rank) {
      const Placement all = Placement::all("cpu");
      const TensorOptions split{.placement = all, .sbp = sbp::split(0)};
      EXPECT_EQ(tensor({1, 2, 3, 4}, split).sum().item().as_int(), 10);
      expect_words(error_of([&] { tensor(std::vector<int64_t>(static_cast<size_t>(6 + rank)), {6 + rank}, split); }),
                   {"[6]", "[7]", "to_global"});
      expect_words(error_of([&] { tensor({1, 2, 3, rank}, split); }), {"values", "differ"});
      const Placement last("cpu", {ranks - 1});
      EXPECT_EQ(tensor({1, 2, rank}, {.placement = last, .sbp = sbp::split(0)}).shape(), (Dims{3}));
    });
  unsetenv("HOLON_CHECK");
}

}  // namespace
}  // namespace holon
