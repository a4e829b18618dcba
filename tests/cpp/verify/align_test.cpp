#include "holon/verify/align.h"

#include <gtest/gtest.h>

namespace holon::verify {
namespace {

std::vector<int> places(std::vector<uint64_t> a, std::vector<uint64_t> b) { return align(a, b); }

TEST(Align, PutsTheSameRecordsTogether) {
  EXPECT_EQ(places({1, 2, 3}, {1, 2, 3}), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(places({1, 2, 3}, {1, 7, 2, 7, 3}), (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(places({1, 9, 2, 3}, {1, 2, 3}), (std::vector<int>{0, -1, 1, 2}));
  EXPECT_EQ(places({}, {1}), std::vector<int>());
  EXPECT_EQ(places({1, 2}, {}), (std::vector<int>{-1, -1}));
}

TEST(Align, FindsALongestCommonSubsequence) {
  uint64_t seed = 5;
  auto draw = [&](size_t n) {
    std::vector<uint64_t> list(n);
    for (auto& x : list) x = (seed = seed * 6364136223846793005u + 1442695040888963407u) >> 62;
    return list;
  };
  for (size_t n = 0; n < 40; ++n) {
    const auto a = draw(n), b = draw(n * 7 % 23);
    std::vector<std::vector<size_t>> most(a.size() + 1, std::vector<size_t>(b.size() + 1, 0));
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t j = 0; j < b.size(); ++j)
        most[i + 1][j + 1] = a[i] == b[j] ? most[i][j] + 1 : std::max(most[i][j + 1], most[i + 1][j]);
    const auto found = align(a, b);
    size_t matched = 0;
    int last = -1;
    for (size_t i = 0; i < a.size(); ++i) {
      if (found[i] < 0) continue;
      EXPECT_GT(found[i], last);
      EXPECT_EQ(a[i], b[static_cast<size_t>(found[i])]);
      last = found[i];
      ++matched;
    }
    EXPECT_EQ(matched, most[a.size()][b.size()]) << n;
  }
}

TEST(Align, MatchesByOrderWhereAlmostAllDiffers) {
  std::vector<uint64_t> a, b;
  for (uint64_t i = 0; i < 5000; ++i) a.push_back(2 * i), b.push_back(2 * i + 1);
  a.push_back(1u << 20);
  b.push_back(1u << 20);
  const auto found = align(a, b);
  EXPECT_EQ(found.back(), 5000);
  EXPECT_EQ(found.front(), -1);
}

// Updates of a parameter are the same ones, whatever part of it a rank has.
TEST(Align, TellsRecordsApart) {
  const Record update{.kind = Kind::kUpdate, .op = "Adam", .site = "a.py:3", .label = "parameter 0 [4, 8]"};
  Record other = update;
  other.label = "parameter 0 [2, 8]";
  EXPECT_EQ(key_of(update), key_of(other));
  other.label = "parameter 1 [4, 8]";
  EXPECT_NE(key_of(update), key_of(other));
  other = update;
  other.site = "a.py:4";
  EXPECT_NE(key_of(update), key_of(other));
}

}  // namespace
}  // namespace holon::verify
