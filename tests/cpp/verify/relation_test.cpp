#include "holon/verify/relation.h"

#include <gtest/gtest.h>

#include <cmath>

namespace holon::verify {
namespace {

using Numbers = std::vector<double>;

Value local(Dims shape, Numbers numbers) {
  Value v;
  v.shape = v.part_shape = shape;
  v.here = true;
  v.part = std::move(numbers);
  return v;
}

Value part(Dims shape, Dims hierarchy, std::vector<Sbp> nd_sbp, Dims part_shape, Numbers numbers) {
  Value v = local(part_shape, std::move(numbers));
  v.shape = shape;
  v.global = true;
  v.hierarchy = hierarchy;
  for (int r = 0; r < hierarchy.numel(); ++r) v.ranks.push_back(r);
  v.nd_sbp = std::move(nd_sbp);
  return v;
}

std::vector<const Value*> pointers(const std::vector<Value>& list) {
  std::vector<const Value*> all;
  for (auto& v : list) all.push_back(&v);
  return all;
}

std::string relation(const std::vector<Value>& list, Dims shape, Numbers expected) {
  const auto found = relation_of(pointers(list), shape, expected, 1e-9);
  if (!found) return "none";
  if (found->match.level == Match::Level::kDiffers) return "differs";
  return found->str() + (found->match.level == Match::Level::kScaled ? " scaled" : "");
}

TEST(Match, TellsTheSameFromMultiplesAndOthers) {
  const Numbers e{1, -2, 3, 4, 5};
  EXPECT_EQ(match(e, e, 0, {}).level, Match::Level::kSame);
  EXPECT_EQ(match(Numbers{1, -2, 3, 4, 5.01}, e, 0.1, {}).level, Match::Level::kSame);
  const Match scaled = match(Numbers{3, -6, 9, 12, 15}, e, 1e-9, {});
  EXPECT_EQ(scaled.level, Match::Level::kScaled);
  EXPECT_DOUBLE_EQ(scaled.factor, 3);
  const Match other = match(Numbers{1, -2, 3, 4, 9}, e, 1e-9, {});
  EXPECT_EQ(other.level, Match::Level::kDiffers);
  EXPECT_EQ(other.element, 4);
  EXPECT_EQ(other.found, 9);
  EXPECT_EQ(other.expected, 5);
  EXPECT_EQ(match(Numbers{1}, e, 1, {}).level, Match::Level::kDiffers);
}

TEST(Match, OfFewNumbersOnlyKnownFactorsCount) {
  EXPECT_EQ(match(Numbers{6}, Numbers{2}, 1e-9, Numbers{2, 0.5}).level, Match::Level::kDiffers);
  EXPECT_EQ(match(Numbers{4}, Numbers{2}, 1e-9, Numbers{2, 0.5}).factor, 2);
  EXPECT_EQ(match(Numbers{0, 0, 0, 0, 0}, Numbers{1, 2, 3, 4, 5}, 1e-9, {}).level, Match::Level::kDiffers);
}

TEST(Match, NanIsTheSameAsNan) {
  EXPECT_EQ(match(Numbers{NAN, INFINITY}, Numbers{NAN, INFINITY}, 0, {}).level, Match::Level::kSame);
  EXPECT_EQ(match(Numbers{NAN, 1}, Numbers{2, 1}, 0, {}).level, Match::Level::kDiffers);
}

TEST(Assemble, PutsPartsTogetherAndAddsAddends) {
  const std::vector<Sbp> split{sbp::split(0)}, partial{sbp::partial_sum()};
  const std::vector<Value> rows{part({3}, {2}, split, {2}, {1, 2}), part({3}, {2}, split, {1}, {3})};
  EXPECT_EQ(assemble(pointers(rows)).value, (Numbers{1, 2, 3}));
  const std::vector<Value> addends{part({2}, {2}, partial, {2}, {1, 2}), part({2}, {2}, partial, {2}, {3, 4})};
  const Assembled sum = assemble(pointers(addends));
  EXPECT_EQ(sum.value, (Numbers{4, 6}));
  EXPECT_TRUE(sum.whole);
  EXPECT_FALSE(assemble(std::vector<const Value*>{addends.data(), nullptr}).whole);
}

TEST(Assemble, FindsCopiesWithOtherBits) {
  const std::vector<Sbp> sbps{sbp::split(0), sbp::broadcast()};
  std::vector<Value> grid;
  for (int r = 0; r < 4; ++r) grid.push_back(part({2}, {2, 2}, sbps, {1}, {r < 2 ? 1.0 : 2.0}));
  EXPECT_EQ(assemble(pointers(grid)).drifted_rank, -1);
  EXPECT_EQ(assemble(pointers(grid)).value, (Numbers{1, 2}));
  grid[3].part[0] = std::nextafter(2.0, 3.0);
  const Assembled found = assemble(pointers(grid));
  EXPECT_EQ(found.drifted_rank, 3);
  EXPECT_EQ(found.first, 2);
}

TEST(Relation, OfLocalTensors) {
  const Numbers e{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(relation({local({8}, e), local({8}, e)}, {8}, e), "B");
  EXPECT_EQ(relation({local({4}, {1, 2, 3, 4}), local({4}, {5, 6, 7, 8})}, {8}, e), "S(0)");
  EXPECT_EQ(relation({local({2, 2}, {1, 2, 5, 6}), local({2, 2}, {3, 4, 7, 8})}, {2, 4}, e), "S(1)");
  EXPECT_EQ(relation({local({8}, {0, 2, 0, 4, 0, 6, 0, 8}), local({8}, {1, 0, 3, 0, 5, 0, 7, 0})}, {8}, e), "P");
  EXPECT_EQ(relation({local({8}, {2, 2, 2, 2, 2, 2, 2, 2}), local({8}, {0, 2, 4, 6, 8, 10, 12, 14})}, {8}, e),
            "P, as a mean");
  EXPECT_EQ(relation({local({4}, {1, 3, 5, 7}), local({4}, {2, 4, 6, 8})}, {8}, e), "every 2th along axis 0");
  EXPECT_EQ(relation({local({4}, {1, 2, 3, 4}), local({4}, {1, 2, 3, 4})}, {8}, e), "differs");
  EXPECT_EQ(relation({local({3}, {1, 2, 3}), local({4}, {1, 2, 3, 4})}, {8}, e), "none");
  EXPECT_EQ(relation({local({4}, {2, 4, 6, 8}), local({4}, {10, 12, 14, 16})}, {8}, e), "S(0) scaled");
}

TEST(Relation, OverAGrid) {
  std::vector<Value> list;
  for (int r = 0; r < 4; ++r) {
    Numbers half = r % 2 ? Numbers{3, 4} : Numbers{1, 2};
    for (double& x : half) x *= r / 2 ? 0.25 : 0.75;
    list.push_back(local({2}, half));
  }
  EXPECT_EQ(relation(list, {4}, {1, 2, 3, 4}), "(P, S(0))");
}

TEST(Place, OfAPartInAWhole) {
  const Numbers whole{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(place_of(Numbers{2, 3}, {1, 2}, whole, {4, 2}, 0, 0), 1);
  EXPECT_EQ(place_of(Numbers{1, 2, 5, 6}, {2, 2}, whole, {2, 4}, 1, 0), 1);
  EXPECT_EQ(place_of(Numbers{1, 2}, {1, 2}, whole, {4, 2}, 0, 0), -1);
}

}  // namespace
}  // namespace holon::verify
