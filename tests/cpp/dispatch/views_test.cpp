// Writes into views while ops are recorded.
#include "holon/dispatch/views.h"

#include <gtest/gtest.h>

#include <vector>

#include "holon/autograd/engine.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/operators.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"
#include "holon/tensor/node.h"
#include "tests/cpp/error_of.h"

namespace holon {
namespace {

Tensor leaf() { return tensor({{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}}, {.dtype = float64, .requires_grad = true}); }

TEST(Views, AWriteReachesTheBase) {
  Tensor x = leaf(), y = x * 1.0;
  Tensor before = select(y, 1, 0);
  mul_(select(transpose(y, 0, 1), 0, 0), 3.0);
  copy_(select(y, 0, 1), select(y.detach(), 0, 0));
  EXPECT_TRUE(before.requires_grad());
  (y * y).sum().backward();
  // y is [3 x00, x01, x02] and a constant row.
  EXPECT_EQ(to_vector<double>(x.grad()), (std::vector<double>{18, 4, 6, 0, 0, 0}));
}

TEST(Views, KnowTheirBase) {
  Tensor y = zeros({2, 3}), row = select(y, 0, 0);
  EXPECT_TRUE(is_tracked_view(row));
  EXPECT_TRUE(base_of(row).is_same(y));
  EXPECT_FALSE(base_of(y).defined());
  EXPECT_FALSE(is_tracked_view(y.detach()));
  EXPECT_EQ(views_of(y).size(), 2u);  // the slice, too
  {
    NoGradGuard no_grad;
    EXPECT_FALSE(is_tracked_view(select(y, 0, 0)));
  }
  row = Tensor();
  EXPECT_TRUE(views_of(y).empty());
  // A reshape that must copy is no view.
  EXPECT_FALSE(is_tracked_view(reshape(transpose(y, 0, 1), {6})));
}

TEST(Views, Refuse) {
  Tensor x = leaf();
  EXPECT_NE(error_of([&] { mul_(select(x, 0, 0), 2.0); }).find("of a leaf"), std::string::npos);
  Tensor y = x * 1.0, z = y * y;
  mul_(select(y, 0, 0), 2.0);
  EXPECT_NE(error_of([&] { z.sum().backward(); }).find("changed in place"), std::string::npos);
  EXPECT_NE(error_of([&] { add_(expand(ones({1, 3}), {2, 3}), 1.0); }).find("one place in memory"), std::string::npos);
}

TEST(Views, OfViewsWithoutEnd) {
  for (bool grad : {false, true}) {
    Tensor y = grad ? leaf() * 1.0 : zeros({2, 3}, {.dtype = float64});
    Tensor t = y;
    for (int i = 0; i < 200'000; ++i) t = transpose(t, 0, 1);
    EXPECT_NE(error_of([&] { mul_(t, leaf()); }).find("too many views"), std::string::npos);
    mul_(y, leaf());
    EXPECT_NE(error_of([&] { t.sum().backward(); }).find("not known"), std::string::npos);
  }
}

TEST(Views, OfGlobalTensors) {
  comm::run_ranks(2, [](int) {
    const Placement placement = Placement::all("cpu");
    for (Sbp s : {sbp::split(0), sbp::split(1), sbp::broadcast()}) {
      Tensor x = place(leaf().detach(), placement, NdSbp{s}).detach();
      x.set_requires_grad();
      Tensor y = x * 1.0, t = transpose(y, 0, 1);
      if (s == sbp::split(0))
        mul_(slice(t, 0, 0, 1), 3.0);
      else
        mul_(slice(y, 0, 0, 1), 3.0);
      (t * t).sum().backward();
      const std::vector<double> want =
          s == sbp::split(0) ? std::vector<double>{18, 4, 6, 72, 10, 12} : std::vector<double>{18, 36, 54, 8, 10, 12};
      EXPECT_EQ(to_vector<double>(x.grad()), want) << s.str();
    }
  });
}

}  // namespace
}  // namespace holon
