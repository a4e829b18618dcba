#include "holon/boxing/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "boxing/specs.h"
#include "holon/base/context.h"
#include "holon/base/error.h"

namespace holon::boxing {
namespace {

using namespace testing_boxing;

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), B = sbp::broadcast(), P = sbp::partial_sum();

class PlannerTest : public testing::Test {
 protected:
  PlannerTest() { set_machine({}); }  // not what this machine happens to measure
  const GlobalSpec* on(const std::vector<int64_t>& ranks, Sbp s) { return intern_spec(Placement("cpu", ranks), s); }
  const GlobalSpec* on_grid(NdSbp s) { return intern_spec(Placement::nested("cpu", {{0, 1}, {2, 3}}), s); }
  static std::vector<StepKind> kinds(const Plan& p) {
    std::vector<StepKind> k;
    for (auto& s : p.steps()) k.push_back(s.kind);
    return k;
  }
  Context context_{0, 12, 0, 12};
  ContextGuard guard_{context_};
};

using Kinds = std::vector<StepKind>;

TEST_F(PlannerTest, NothingToDo) {
  auto* s = on({0, 1}, S0);
  const Plan nothing = plan(s, s, {4, 4}, float32);
  EXPECT_TRUE(nothing.steps().empty());
  EXPECT_EQ(cost(s, s, {4, 4}, float32), 0.0);
  EXPECT_THAT(explain(s, s, {4, 4}, float32), testing::HasSubstr("nothing to do"));
}

TEST_F(PlannerTest, WhatOneRankHasCostsWhatItsPlanSays) {
  const Sbp all[] = {S0, S1, B, P};
  std::vector<std::pair<Placement, NdSbp>> layouts;
  for (Sbp a : all) {
    layouts.push_back({Placement("cpu", {3}), a});
    for (Sbp b : all) layouts.push_back({Placement::nested("cpu", {{3}}), NdSbp({a, b})});
  }
  for (auto& [p, a] : layouts)
    for (auto& [q, b] : layouts) {
      if (p != q) continue;
      auto *from = intern_spec(p, a), *to = intern_spec(q, b);
      const double seconds = cost(from, to, {4, 6}, float32);
      EXPECT_EQ(max_read_bytes(from, to, {4, 6}, float32), 0);
      const Plan planned = find_plan(from, to, {4, 6}, float32, Machine{});
      EXPECT_EQ(seconds, planned.predicted_s()) << a.str() << " -> " << b.str();
      EXPECT_EQ(planned.max_read_bytes(), 0);
    }
}

TEST_F(PlannerTest, BroadcastToSplitIsAView) {
  Plan p = plan(on({0, 1, 2}, B), on({0, 1, 2}, S1), {5, 7}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kSlice});
  EXPECT_EQ(p.max_read_bytes(), 0);
  EXPECT_EQ(p.peak_bytes(), 0);
  EXPECT_GT(p.predicted_s(), 0);
  EXPECT_LT(p.predicted_s(), 2e-7);
  // Also on part of the ranks.
  EXPECT_EQ(kinds(plan(on({0, 1, 2}, B), on({2, 1}, S0), {5, 7}, float32)), Kinds{StepKind::kSlice});
}

TEST_F(PlannerTest, AllGatherReadsWhatOthersHold) {
  Plan p = plan(on({0, 1, 2, 3}, S0), on({0, 1, 2, 3}, B), {8, 3}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kAllGather});
  for (int r = 0; r < 4; ++r) EXPECT_EQ(p.read_bytes(r), 6 * 3 * 4);
  EXPECT_EQ(p.read_bytes(7), 0);
  p = plan(on({0, 1}, S0), on({0, 1}, B), {5, 3}, float64);
  EXPECT_EQ(p.read_bytes(0), 2 * 3 * 8);
  EXPECT_EQ(p.read_bytes(1), 3 * 3 * 8);
}

TEST_F(PlannerTest, AllToAllReadsWhatIsLacking) {
  Plan p = plan(on({0, 1}, S0), on({0, 1}, S1), {4, 6}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kAllToAll});
  EXPECT_EQ(p.read_bytes(0), 2 * 3 * 4);
  EXPECT_EQ(p.read_bytes(1), 2 * 3 * 4);
}

TEST_F(PlannerTest, SumsReadTheOthersAddends) {
  Plan p = plan(on({0, 1, 2, 3}, P), on({0, 1, 2, 3}, S0), {8, 3}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kReduceScatter});
  EXPECT_EQ(p.read_bytes(2), 3 * 2 * 3 * 4);

  p = plan(on({0, 1, 2, 3}, P), on({0, 1, 2, 3}, B), {8, 3}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kAllReduce});
  EXPECT_FALSE(p.steps()[0].two_phase);
  EXPECT_EQ(p.read_bytes(2), 3 * 8 * 3 * 4);

  p = plan(on({0, 1, 2, 3}, P), on({0, 1, 2, 3}, B), {1024, 1024}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kAllReduce});
  EXPECT_TRUE(p.steps()[0].two_phase);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(p.read_bytes(r), 2 * (3 << 20));
}

TEST_F(PlannerTest, ZerosNeedNoCommunication) {
  EXPECT_EQ(kinds(plan(on({0, 1}, B), on({0, 1}, P), {5}, float32)), Kinds{StepKind::kZeroFill});
  EXPECT_EQ(kinds(plan(on({0, 1}, S0), on({0, 1}, P), {5}, float32)), Kinds{StepKind::kZeroFill});
  EXPECT_EQ(kinds(plan(on_grid({S0, S0}), on_grid({P, P}), {5}, float32)), Kinds{StepKind::kZeroFill});
  // The inner axis goes on cutting what the outer one no longer does: data must move.
  EXPECT_GT(plan(on_grid({S0, S0}), on_grid({P, S0}), {4}, float32).max_read_bytes(), 0);
}

TEST_F(PlannerTest, EverySumOfTwoAxesInOneStep) {
  Plan p = plan(on_grid({P, P}), on_grid({B, B}), {512, 512}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kAllReduce});
  EXPECT_EQ(p.read_bytes(0), 2 * 3 * (1 << 18));
}

TEST_F(PlannerTest, LargeSumsScatterBeforeTheyGather) {
  // The whole is summed once over both axes, no rank reads three addends of everything.
  Plan p = plan(on_grid({P, S0}), on_grid({B, B}), {1024, 1024}, float32);
  EXPECT_GT(p.steps().size(), 1u) << p.str();
  EXPECT_LE(p.max_read_bytes(), (1 << 20) * 4 * 3 / 2) << p.str();
}

TEST_F(PlannerTest, NestedSplitsThatChangeOutsideExchange) {
  Plan p = plan(on_grid({S0, S0}), on_grid({B, S0}), {8}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kExchange});
  // Rank 0 had rows 0-1 and needs 0-3; rank 1 had 2-3 and needs 4-7.
  EXPECT_EQ(p.read_bytes(0), 2 * 4);
  EXPECT_EQ(p.read_bytes(1), 4 * 4);
  // The inner axis alone: the group is its own.
  p = plan(on_grid({S0, S0}), on_grid({S0, B}), {8}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kAllGather});
  EXPECT_THAT(p.transfer(0, 2).members, testing::ElementsAre(2, 3));
}

TEST_F(PlannerTest, BetweenPlacements) {
  Plan p = plan(on({0, 1}, B), on({1, 2}, B), {4}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kExchange});
  EXPECT_EQ(p.read_bytes(0), 0);
  EXPECT_EQ(p.read_bytes(1), 0);
  EXPECT_EQ(p.read_bytes(2), 16);

  p = plan(on({0, 1}, S0), on({1, 0}, S0), {4}, float32);
  EXPECT_EQ(p.read_bytes(0), 8);
  EXPECT_EQ(p.read_bytes(1), 8);

  // The same ranks seen as another grid: nothing needs to move.
  auto* flat = on({0, 1, 2, 3}, S0);
  EXPECT_EQ(kinds(plan(flat, on_grid({S0, S0}), {8, 2}, float32)), Kinds{StepKind::kSlice});
  EXPECT_EQ(plan(flat, on_grid({S0, B}), {8, 2}, float32).read_bytes(0), 2 * 2 * 4);

  // To P: the target's ranks take what they make addends of, and put it among zeros.
  p = plan(on({0, 1}, S0), on({2, 3}, P), {1 << 20}, float32);
  EXPECT_EQ(kinds(p), (Kinds{StepKind::kExchange, StepKind::kZeroFill}));
  EXPECT_LE(p.max_read_bytes(), 4 << 20);
  // Addends on as many ranks just move.
  p = plan(on({0, 1}, P), on({3, 2}, P), {1 << 20}, float32);
  EXPECT_EQ(kinds(p), Kinds{StepKind::kExchange});
  EXPECT_EQ(p.max_read_bytes(), 4 << 20);
}

TEST_F(PlannerTest, OwnersOfCopiesShareTheLoad) {
  Plan p = plan(on({0, 1}, B), on({2, 3, 4, 5}, B), {4}, float32);
  std::vector<int> asked(6);
  for (int r : {2, 3, 4, 5}) {
    auto& t = p.transfer(0, r);
    ASSERT_EQ(t.pulls.size(), 1u);
    ++asked[static_cast<size_t>(t.members[static_cast<size_t>(t.pulls[0].owners[0])])];
  }
  EXPECT_EQ(asked, (std::vector<int>{2, 2, 0, 0, 0, 0}));
}

TEST_F(PlannerTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(plan(on({0, 1}, S0), on({0, 1}, B), {}, float32), Error);
  EXPECT_THROW(plan(on({0, 1}, B), on({0, 1}, S1), {4}, float32), Error);
  EXPECT_THROW(plan(intern_spec(Placement("cpu", {0, 1}), {B, B}), on({0, 1}, B), {4}, float32), Error);
}

TEST_F(PlannerTest, ExplainNamesStepsBytesAndTime) {
  std::string text = explain(on({0, 1}, S0), on({0, 1}, B), {5, 3}, float32);
  EXPECT_THAT(text, testing::HasSubstr("1. all_gather S(0) -> B: reads 24 bytes on rank 0, 36 bytes on rank 1"));
  EXPECT_THAT(text, testing::HasSubstr("at most 36 bytes per rank"));
  EXPECT_THAT(text, testing::HasSubstr(" us"));
  EXPECT_THAT(explain(on({0, 1}, S0), on({0, 1}, B), {4, 3}, float32), testing::HasSubstr("reads 24 bytes per rank"));
  EXPECT_THAT(explain(on({0, 1}, B), on({0, 1}, P), {4, 3}, float32),
              testing::HasSubstr("zero_fill B -> P: reads nothing"));
}

// What holds for every plan: it begins and ends right, its lists are complete and agree with its figures, and no
// intermediate part is larger than both ends.
void check_plan(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape) {
  Plan p = plan(from, to, shape, float32);
  SCOPED_TRACE(p.str());
  auto part = [&](const GlobalSpec* s) { return region_of(shape, s->placement, s->nd_sbp, 0).shape.numel() * 4; };
  int64_t limit = std::max(part(from), part(to));
  const GlobalSpec* at = from;
  for (size_t i = 0; i < p.steps().size(); ++i) {
    auto& step = p.steps()[i];
    ASSERT_EQ(step.from, at);
    at = step.to;
    ASSERT_LE(part(at), limit);
    ASSERT_LE(step.out_bytes, limit);
    ASSERT_GT(step.predicted_s, 0);
    for (int index = 0; step.communicates() && index < step.to->placement.size(); ++index) {
      int rank = step.to->placement.ranks()[static_cast<size_t>(index)];
      auto& t = p.transfer(i, rank);
      ASSERT_EQ(t.members[static_cast<size_t>(t.me)], rank);
      int64_t taken = 0, read = 0;
      for (auto& pull : t.pulls) {
        taken += pull.shape.numel();
        for (int owner : pull.owners) read += owner == t.me ? 0 : pull.shape.numel();
      }
      ASSERT_EQ(taken, t.shape.numel());
      if (!step.two_phase) {
        ASSERT_EQ(read * 4, step.read_bytes[static_cast<size_t>(index)]);
      }
    }
  }
  ASSERT_EQ(at, to);
  // What is held beside the input: parts between the ends, which take no more than the larger end, and the result.
  ASSERT_LE(p.between_bytes(), limit);
  ASSERT_LE(p.peak_bytes(), limit + part(to));
  ASSERT_EQ(p.steps().empty(), from == to);
}

TEST_F(PlannerTest, EveryPairOfTwoAxesHasASoundPlan) {
  auto specs = all_specs(Placement::nested("cpu", {{0, 1}, {2, 3}}), options_of(3));
  for (const Dims& shape : {Dims{4, 6, 2}, Dims{5, 3, 2}, Dims{1, 7, 2}, Dims{64, 64, 16}, Dims{0, 3, 2}})
    for (auto* from : specs)
      for (auto* to : specs) check_plan(from, to, shape);
}

TEST_F(PlannerTest, EveryPairOfThreeAxesHasASoundPlan) {
  auto specs = all_specs(Placement("cpu", Dims{2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7}), options_of(2));
  for (const Dims& shape : {Dims{6, 5}, Dims{128, 96}})
    for (auto* from : specs)
      for (auto* to : specs) check_plan(from, to, shape);
}

TEST_F(PlannerTest, EveryPairOfPlacementsHasASoundPlan) {
  std::vector<const GlobalSpec*> specs;
  for (auto& p : {Placement("cpu", {0, 1, 2}), Placement("cpu", {2, 1}), Placement("cpu", {3}),
                  Placement("cpu", Dims{2, 2}, {3, 0, 2, 1}), Placement("cpu", Dims{1, 2, 2}, {4, 5, 6, 7})})
    for (auto* s : all_specs(p, options_of(2))) specs.push_back(s);
  for (const Dims& shape : {Dims{5, 3}, Dims{0, 2}, Dims{1, 1}})
    for (auto* from : specs)
      for (auto* to : specs) check_plan(from, to, shape);
}

TEST_F(PlannerTest, RandomGridsHaveSoundPlans) {
  std::mt19937 random(7);
  auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  std::vector<Dims> grids = {{2, 2, 2}, {2, 4}, {8}, {1, 8}, {2, 3}, {3, 1, 2}, {5}, {1}, {12}};
  for (int trial = 0; trial < 400; ++trial) {
    const GlobalSpec* ends[2];
    Dims shape = {1 + pick(40), pick(9), 1 + pick(5)};
    for (auto& end : ends) {
      Dims grid = grids[static_cast<size_t>(pick(static_cast<int64_t>(grids.size())))];
      std::vector<int64_t> ranks(12);
      std::iota(ranks.begin(), ranks.end(), 0);
      std::shuffle(ranks.begin(), ranks.end(), random);
      ranks.resize(static_cast<size_t>(grid.numel()));
      std::vector<Sbp> list;
      for (int a = 0; a < grid.size(); ++a) list.push_back(options_of(3)[static_cast<size_t>(pick(5))]);
      end = intern_spec(Placement("cpu", grid, ranks), NdSbp(list));
    }
    check_plan(ends[0], ends[1], shape);
  }
}

TEST_F(PlannerTest, ManyAxesStillHaveAPlan) {
  Placement p("cpu", Dims{1, 2, 1, 2, 1, 2, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7});
  auto* from = intern_spec(p, {B, S0, P, S1, B, P, S0, S1});
  auto* to = intern_spec(p, {P, P, S0, B, S1, S0, P, B});
  Plan found = plan(from, to, {8, 9}, float32);
  EXPECT_EQ(found.steps().back().to, to);
  EXPECT_LE(found.steps().size(), 2u);
}

TEST_F(PlannerTest, CacheReturnsTheSamePlanAndIsBounded) {
  auto *a = on({0, 1}, S0), *b = on({0, 1}, B);
  const Plan first = plan(a, b, {6, 2}, float32), second = plan(a, b, {6, 2}, float32);
  EXPECT_EQ(&first.steps(), &second.steps());
  Plan kept = plan(a, b, {3, 3}, float32);
  std::set<const void*> seen;
  for (int64_t n = 1; n <= 10000; ++n) plan(a, b, {n, 1}, float32);
  // What the cache has let go of is valid for those who hold it.
  EXPECT_EQ(kept.read_bytes(0), 12);
  const Plan again = plan(a, b, {3, 3}, float32);
  EXPECT_NE(&kept.steps(), &again.steps());
}

TEST_F(PlannerTest, CostsOfAnotherMachineChangeThePath) {
  auto *from = on_grid({P, S0}), *to = on_grid({B, B});
  MachineCosts slow_sync;
  slow_sync.sync_s = 1;
  const Plan found = find_plan(from, to, {1024, 1024}, float32, slow_sync);
  EXPECT_EQ(found.steps().size(), 1u);
}

}  // namespace
}  // namespace holon::boxing
