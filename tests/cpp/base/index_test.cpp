#include "holon/base/index.h"

#include <gtest/gtest.h>

#include <map>
#include <span>
#include <vector>

#include "holon/base/error.h"

namespace holon {
namespace {

TEST(Index, ElementsAreThoseOfTheContainer) {
  std::vector<int> v{1, 2, 3};
  at_index(v, int64_t{2}) = 7;
  EXPECT_EQ(v[2], 7);
  EXPECT_EQ(at_index(std::as_const(v), uint8_t{0}), 1);
  EXPECT_EQ(at_index(std::span<const int>(v), 1), 2);
  EXPECT_EQ(at_index(v.data(), 1), 2);
  std::vector<bool> bits{true, false};
  at_index(bits, 1) = true;
  EXPECT_TRUE(bits[1]);
  static_assert(!detail::Sequence<std::map<int, int>&> && detail::Sequence<std::vector<int>&>);
  EXPECT_EQ(to_size(5), size_t{5});
  EXPECT_EQ(to_size(UINT64_MAX), SIZE_MAX);
}

// What at_index() and to_size() call in builds that check.
TEST(Index, OutsideIsAnInternalError) {
  detail::check_index(0, 1);
  for (int64_t i : {int64_t{3}, int64_t{-1}, INT64_MIN, INT64_MAX}) EXPECT_THROW(detail::check_index(i, 3), Error) << i;
  EXPECT_THROW(detail::check_index(0u, 0), Error);
  detail::check_size(0);
  EXPECT_THROW(detail::check_size(int8_t{-1}), Error);
  EXPECT_THROW(detail::check_size(INT64_MIN), Error);
}

#ifdef HOLON_CHECK_INDICES
TEST(Index, ThisBuildChecks) {
  const std::vector<int> v{1, 2, 3};
  EXPECT_THROW(at_index(v, 3), Error);
  EXPECT_THROW(to_size(-1), Error);
}
#endif

}  // namespace
}  // namespace holon
