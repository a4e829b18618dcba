#include "holon/ops/sequence_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace holon::ops {
namespace {

std::vector<Interval> parts(int64_t length, int n) {
  std::vector<Interval> all;
  for (int i = 0; i < n; ++i) all.push_back(balanced_split(length, n, i));
  return all;
}

SequenceShares free_of_cost(int64_t length, int n, bool causal, int64_t window) {
  return share_out(parts(length, n), parts(length, n), causal, window, true, 1, 0);
}

TEST(SequenceShares, PairsAreThoseThatAreCounted) {
  for (int64_t window : {0, 1, 3, 9})
    for (bool causal : {false, true})
      for (Interval q : {Interval{0, 5}, {4, 1}, {7, 6}, {3, 0}})
        for (Interval k : {Interval{0, 5}, {2, 9}, {12, 4}, {6, 0}}) {
          int64_t count = 0;
          for (int64_t i = q.begin; i < q.end(); ++i)
            for (int64_t j = k.begin; j < k.end(); ++j) count += (!causal || j <= i) && (!window || j > i - window);
          EXPECT_EQ(seen_pairs(q, k, causal, window), count) << q.begin << " " << k.begin << " " << causal << window;
        }
}

// Each query meets each key once, whatever is where.
TEST(SequenceShares, EveryPairIsComputedOnce) {
  for (int n : {1, 2, 3, 4})
    for (int64_t length : {1, 2, 5, 8, 17, 64})
      for (bool causal : {false, true}) {
        const SequenceShares s = free_of_cost(length, n, causal, 0);
        std::multiset<std::pair<int64_t, int64_t>> met;
        for (int step = 0; step < n; ++step)
          for (int m = 0; m < n; ++m) {
            for (auto& q : s.queries[static_cast<size_t>(m)].pieces)
              for (auto& k : s.needed(m, step).pieces)
                for (int64_t i = q.positions.begin; i < q.positions.end(); ++i)
                  for (int64_t j = k.positions.begin; j < k.positions.end(); ++j)
                    if (!causal || j <= i) met.emplace(i, j);
          }
        EXPECT_EQ(static_cast<int64_t>(met.size()), causal ? length * (length + 1) / 2 : length * length);
        EXPECT_EQ(std::set(met.begin(), met.end()).size(), met.size());
      }
}

TEST(SequenceShares, CausalWorkIsBalanced) {
  for (int n : {2, 3, 4, 8}) {
    const int64_t length = 240;
    const SequenceShares s = free_of_cost(length, n, true, 0);
    ASSERT_TRUE(s.moved);
    // All pairs, shared evenly, and half of a diagonal block's that no rank has to spare.
    const double even = static_cast<double>(length * (length + 1) / 2) / n;
    EXPECT_LT(static_cast<double>(s.pairs()), even * 1.02);
    // As held, the last rank has nearly twice as much.
    EXPECT_GT(static_cast<double>(share_out(parts(length, n), parts(length, n), true, 0, false, 1, 0).pairs()),
              even * (1.4));
  }
}

TEST(SequenceShares, StayWhereMovingDoesNotPay) {
  EXPECT_FALSE(free_of_cost(240, 4, false, 0).moved);
  EXPECT_FALSE(free_of_cost(240, 4, true, 8).moved);  // a window has as many keys everywhere
  EXPECT_FALSE(share_out(parts(240, 4), parts(240, 4), true, 0, true, 1e-9, 1).moved);
  EXPECT_FALSE(share_out(parts(240, 4), parts(120, 4), true, 0, true, 1, 0).moved);
}

TEST(SequenceShares, StepsThatNobodyNeedsAreLeftOut) {
  const SequenceShares s = free_of_cost(400, 4, true, 50);
  int steps = 0;
  for (int step = 0; step < 4; ++step) steps += s.any(step);
  EXPECT_EQ(steps, 2);  // its own keys, and those of the rank before
  EXPECT_TRUE(s.needed(0, 3).pieces.empty());
}

TEST(PackedSequence, PullsBringPartsTogether) {
  // Two tensors, [2 rows, length, 3] and [1 row, length, 1], of 7 positions on 2 members, zigzag to 1 of them.
  const PackedSequence packed({{2, 3}, {1, 1}});
  EXPECT_EQ(packed.elements(4), 2 * 4 * 3 + 4);
  auto value = [](size_t tensor, int64_t row, int64_t position, int64_t column) {
    return static_cast<float>(1000 * tensor + 100 * row + 10 * position + column);
  };
  auto fill = [&](const SequencePart& part) {
    std::vector<float> all(static_cast<size_t>(packed.elements(part.length)), -1);
    for (auto& piece : part.pieces)
      for (int64_t i = 0; i < piece.positions.size; ++i) {
        const int64_t at = piece.at + i, position = piece.positions.begin + i;
        for (int64_t row = 0; row < 2; ++row)
          for (int64_t c = 0; c < 3; ++c)
            all[static_cast<size_t>((row * part.length + at) * 3 + c)] = value(0, row, position, c);
        all[static_cast<size_t>(packed.begin(1, part.length) + at)] = value(1, 0, position, 0);
      }
    return all;
  };
  std::vector<SequencePart> from(2);
  from[0].add({0, 4}), from[1].add({4, 3});
  SequencePart to;
  to.add({1, 2}), to.add({3, 3});
  const std::vector<float> a = fill(from[0]), b = fill(from[1]), wanted = fill(to);
  std::vector<float> found(wanted.size(), -1);
  const std::byte* shown[] = {reinterpret_cast<const std::byte*>(a.data()),
                              reinterpret_cast<const std::byte*>(b.data())};
  comm::pull_all(packed.pulls(from, to), float32, shown, reinterpret_cast<std::byte*>(found.data()), found.size() * 4);
  EXPECT_EQ(found, wanted);
}

}  // namespace
}  // namespace holon::ops
