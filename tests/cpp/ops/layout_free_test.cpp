// Where Context::layout_free() is set, float32 results and gradients of every sample have the same bits on every layout
// as on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>

#include "cases.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/conformance/layouts.h"

namespace holon::testing {
namespace {

class LayoutFree : public ::testing::TestWithParam<conformance::World> {
 protected:
  void SetUp() override { Context::current().set_layout_free(true); }
  void TearDown() override { Context::current().set_layout_free(false); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, LayoutFree, ::testing::ValuesIn(worlds()), [](auto& info) {
  std::string s = info.param.name;
  std::replace(s.begin(), s.end(), ' ', '_');
  return s;
});

TEST_P(LayoutFree, BitsAreThoseOfOneRank) {
  for (const Case& c : cases()) {
    // Weights of integers are for inference: the way of a product depends on the number of its rows.
    if (c.op.starts_with("quantized_")) continue;
    const conformance::Subject subject(c);
    SCOPED_TRACE(subject.name);
    if (std::getenv("HOLON_TEST_VERBOSE")) std::fprintf(stderr, "%s\n", subject.name.c_str());
    try {
      for (auto& wrong : conformance::differing_layouts(subject, GetParam(), test_device()))
        ADD_FAILURE() << subject.name << " of " << wrong;
    } catch (const Error& e) {
      ADD_FAILURE() << subject.name << " by itself: " << e.what();
    }
  }
}

// As a sample, with sizes beyond the width of vectors, but those of size `but`. Three axes of places in a volume grow
// less: the work of a convolution is the product of six.
Case larger(Case c, int64_t by, int64_t but) {
  for (Input& in : c.in)
    for (int a = 0; a < in.shape.size(); ++a)
      if (in.shape[a] > 1 && in.shape[a] != but) in.shape[a] += in.shape.size() == 5 && a >= 2 ? by / 4 : by;
  return c;
}

// The smallest and the largest size above 1.
std::pair<int64_t, int64_t> extremes(const Case& c) {
  std::pair<int64_t, int64_t> found{INT64_MAX, 0};
  for (const Input& in : c.in)
    for (int64_t size : in.shape)
      if (size > 1) found = {std::min(found.first, size), std::max(found.second, size)};
  return found;
}

bool names_a_shape(const Case& c) {
  return std::any_of(c.attrs.begin(), c.attrs.end(), [](const NamedAttr& a) { return a.first == "shape"; });
}

int64_t elements(const Case& c) {
  int64_t most = 0;
  for (const Input& in : c.in) most = std::max(most, in.shape.numel());
  return most;
}

// Of larger sizes, parts take other ways through a kernel than the whole: a column of its own, a narrow tile, a
// remainder. Not every call takes them.
TEST(LayoutFreeSizes, BitsOfLargerSizesAreThoseOfOneRank) {
  Context::current().set_layout_free(true);
  int checked = 0, refused = 0;
  constexpr int64_t kElements = 10'000;
  conformance::World world = worlds()[1];
  world.most = 8;
  for (const Case& c : cases()) {
    // Hidden ops believe the shape that is named.
    if (c.op.starts_with("quantized_") || names_a_shape(c)) continue;
    const auto [smallest, largest] = extremes(c);
    for (auto [by, but] : {std::pair{16, int64_t{0}}, {16, smallest}, {16, largest}, {7, 0}}) {
      Case sample = larger(c, by, but);
      if (elements(sample) > kElements) sample = larger(c, 10, but);
      const conformance::Subject subject(sample);
      SCOPED_TRACE(subject.name);
      if (std::getenv("HOLON_TEST_VERBOSE")) std::fprintf(stderr, "%s\n", subject.name.c_str());
      try {
        for (auto& wrong : conformance::differing_layouts(subject, world, test_device()))
          ADD_FAILURE() << subject.name << " of " << wrong;
        ++checked;
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  Context::current().set_layout_free(false);
  EXPECT_GT(checked, 2 * refused) << refused << " of " << checked + refused << " samples are not of that size";
}

}  // namespace
}  // namespace holon::testing
