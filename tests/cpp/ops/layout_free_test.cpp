// Where Context::layout_free() is set, float32 results and gradients of every sample have the same bits on every layout
// as on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

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

}  // namespace
}  // namespace holon::testing
