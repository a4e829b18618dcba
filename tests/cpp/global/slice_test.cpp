#include "holon/global/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "holon/base/context.h"
#include "holon/base/error.h"

namespace holon {
namespace {

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), B = sbp::broadcast(), P = sbp::partial_sum();

std::vector<int64_t> sizes(int64_t n, int64_t parts) {
  std::vector<int64_t> v;
  for (int64_t i = 0; i < parts; ++i) v.push_back(balanced_split(n, parts, i).size);
  return v;
}

TEST(BalancedSplit, LargerPiecesFirst) {
  using V = std::vector<int64_t>;
  EXPECT_EQ(sizes(5, 2), (V{3, 2}));
  EXPECT_EQ(sizes(5, 3), (V{2, 2, 1}));
  EXPECT_EQ(sizes(5, 4), (V{2, 1, 1, 1}));
  EXPECT_EQ(sizes(7, 4), (V{2, 2, 2, 1}));
  EXPECT_EQ(sizes(2, 4), (V{1, 1, 0, 0}));
  EXPECT_EQ(sizes(0, 3), (V{0, 0, 0}));
  EXPECT_EQ(sizes(8, 4), (V{2, 2, 2, 2}));
}

TEST(BalancedSplit, PiecesCoverInOrder) {
  for (int64_t n : {0, 1, 2, 3, 5, 7, 11, 13, 64, 97})
    for (int64_t parts : {1, 2, 3, 4, 5, 7, 8, 16}) {
      int64_t next = 0;
      for (int64_t i = 0; i < parts; ++i) {
        Interval p = balanced_split(n, parts, i);
        EXPECT_EQ(p.begin, next);
        EXPECT_GE(p.size, n / parts);
        EXPECT_LE(p.size, n / parts + 1);
        next = p.end();
      }
      EXPECT_EQ(next, n);
    }
}

class SliceTest : public testing::Test {
 protected:
  Context context_{0, 12, 0, 12};
  ContextGuard guard_{context_};
};

TEST_F(SliceTest, FollowsTheOrderOfRanks) {
  Placement p("cpu", {1, 0});
  EXPECT_EQ(region_of({5, 2}, p, S0, p.index_of(1)), (Region{{0, 0}, {3, 2}}));
  EXPECT_EQ(region_of({5, 2}, p, S0, p.index_of(0)), (Region{{3, 0}, {2, 2}}));
  EXPECT_EQ(region_of({5, 2}, p, S1, 1), (Region{{0, 1}, {5, 1}}));
}

TEST_F(SliceTest, BroadcastAndPartialAreWhole) {
  Placement p("cpu", {0, 1});
  EXPECT_EQ(region_of({5, 2}, p, B, 1), (Region{{0, 0}, {5, 2}}));
  EXPECT_EQ(region_of({5, 2}, p, P, 1), (Region{{0, 0}, {5, 2}}));
  EXPECT_EQ(region_of({}, p, P, 1), (Region{{}, {}}));
}

TEST_F(SliceTest, AxesNest) {
  auto p = Placement::nested("cpu", {{0, 1}, {2, 3}});
  // 5 rows: 3 + 2, then 2 + 1 and 1 + 1; not the 2 + 1 + 1 + 1 of four parts side by side.
  NdSbp s{S0, S0};
  EXPECT_EQ(region_of({5}, p, s, 0), (Region{{0}, {2}}));
  EXPECT_EQ(region_of({5}, p, s, 1), (Region{{2}, {1}}));
  EXPECT_EQ(region_of({5}, p, s, 2), (Region{{3}, {1}}));
  EXPECT_EQ(region_of({5}, p, s, 3), (Region{{4}, {1}}));
  EXPECT_EQ(region_of({4, 3}, p, {S1, S0}, 2), (Region{{0, 2}, {2, 1}}));
  EXPECT_EQ(region_of({4, 3}, p, {P, S0}, 2), (Region{{0, 0}, {2, 3}}));
}

// Counts how often each element of one copy is held, for every combination of sbp.
TEST_F(SliceTest, SlicesAreDisjointAndCover) {
  std::vector<Dims> hierarchies = {{1}, {2}, {3}, {2, 2}, {2, 3}, {3, 2}, {2, 2, 3}};
  std::vector<Dims> shapes = {{1, 1}, {5, 3}, {7, 2}, {0, 4}, {13, 11}};
  std::vector<Sbp> options = {S0, S1, B, P};
  for (auto& h : hierarchies) {
    std::vector<int64_t> ranks;
    for (int64_t r = 0; r < h.numel(); ++r) ranks.push_back(r);
    Placement p("cpu", h, ranks);
    int combinations = 1;
    for (int i = 0; i < h.size(); ++i) combinations *= 4;
    for (int c = 0; c < combinations; ++c) {
      std::vector<Sbp> list;
      int64_t copies = 1;
      for (int i = 0, rest = c; i < h.size(); ++i, rest /= 4) {
        list.push_back(options[static_cast<size_t>(rest % 4)]);
        if (!list.back().is_split()) copies *= h[i];
      }
      for (auto& shape : shapes) {
        std::vector<int64_t> held(static_cast<size_t>(shape.numel()));
        for (int i = 0; i < p.size(); ++i) {
          Region s = region_of(shape, p, list, i);
          for (int64_t a = 0; a < s.shape[0]; ++a)
            for (int64_t b = 0; b < s.shape[1]; ++b)
              ++held[static_cast<size_t>((s.offset[0] + a) * shape[1] + s.offset[1] + b)];
        }
        for (int64_t n : held) ASSERT_EQ(n, copies) << NdSbp(list).str() << " of " << shape.str() << " on " << h.str();
      }
    }
  }
}

TEST_F(SliceTest, WrongSbpIsRefused) {
  auto message = [](std::function<void()> f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  Placement p("cpu", {0, 1});
  auto grid = Placement::nested("cpu", {{0, 1}});
  EXPECT_THAT(message([&] {
                check_nd_sbp({4, 5}, p, sbp::split(2), "to_global");
              }),
              testing::HasSubstr("to_global: Split axis out of range (expected to be in range of [0, 2), but got 2!)"));
  EXPECT_THAT(message([&] { check_nd_sbp({}, p, S0, "ones"); }), testing::HasSubstr("use broadcast or partial_sum"));
  EXPECT_THAT(message([&] {
                check_nd_sbp({4, 5}, grid, S0, "ones");
              }),
              testing::HasSubstr(
                  "ones: 1 sbp for placement(type=\"cpu\", ranks=[[0, 1]]), whose hierarchy has 2 axes"));
  EXPECT_THAT(message([&] { check_nd_sbp({4}, p, {S0, B}, "ones"); }), testing::HasSubstr("has 1 axis"));
  EXPECT_EQ(message([&] { check_nd_sbp({4, 5}, grid, {S1, P}, "ones"); }), "no error");
}

}  // namespace
}  // namespace holon
