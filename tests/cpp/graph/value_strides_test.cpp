// Values of a compiled step that lie as their reader wants them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/tensor.h"

namespace holon::graph {
namespace {

std::vector<float> floats(const Tensor& x) {
  Tensor whole = (x.is_global() ? x.full() : x).reshape({-1});
  return {whole.data<float>().begin(), whole.data<float>().end()};
}

// Heads side by side, after a product of each: [b, h, t, d] -> [b, t, h * d].
Tensor joined(const Tensor& a, const Tensor& b) {
  Tensor y = matmul(a, b).transpose(1, 2);
  return y.reshape({y.size(0), y.size(1), y.size(2) * y.size(3)});
}

// Runs f compiled, compares with f run eagerly, and returns the number of copies in a step.
int64_t copies(const std::function<std::vector<Tensor>(const Tensor&, const Tensor&)>& f, const Tensor& a,
               const Tensor& b) {
  std::vector<Tensor> want = f(a, b);
  Capture capture;
  Tensor x = capture.input_like(a), y = capture.input_like(b);
  std::vector<Tensor> out = f(x, y);
  Step step(capture.finish(out), {.verify = true});
  std::vector<Tensor> in{a, b}, got = step.run(in);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].shape(), want[i].shape());
    EXPECT_EQ(floats(got[i]), floats(want[i]));
  }
  std::string plan = step.plan();
  int64_t n = 0;
  for (size_t at = 0; (at = plan.find("-> reshape", at)) != std::string::npos; ++at) ++n;
  return n;
}

TEST(ValueStrides, ReshapeOfTransposedProductIsNoCopy) {
  manual_seed(3);
  Tensor a = randn({2, 4, 5, 7}), b = randn({2, 4, 7, 6});
  auto scaled = [](const Tensor& x) { return mul(x, 2); };
  EXPECT_EQ(copies([&](auto& x, auto& y) { return std::vector{scaled(joined(x, y))}; }, a, b), 0);
  EXPECT_EQ(copies([&](auto& x, auto& y) { return std::vector{scaled(joined(x, y).transpose(0, 1))}; }, a, b), 0);
  // The product of one head, of one row, of none.
  EXPECT_EQ(copies([&](auto& x, auto& y) { return std::vector{scaled(joined(slice(x, 1, 0, 1), slice(y, 1, 0, 1)))}; },
                   a, b),
            0);
  EXPECT_EQ(copies([&](auto& x, auto& y) { return std::vector{scaled(joined(slice(x, 2, 0, 1), y))}; }, a, b), 0);
  EXPECT_EQ(copies([&](auto& x, auto& y) { return std::vector{scaled(joined(slice(x, 2, 0, 0), y))}; }, a, b), 0);
  // As the backward of attention has it: the product's own axes swapped first.
  EXPECT_EQ(copies(
                [&](auto& x, auto& y) {
                  Tensor p = matmul(y.transpose(2, 3), x.transpose(2, 3)).transpose(2, 3).transpose(1, 2);
                  return std::vector{scaled(p.reshape({2, 5, -1}))};
                },
                a, b),
            0);
}

TEST(ValueStrides, OthersReadTheSameValues) {
  manual_seed(4);
  Tensor a = randn({2, 4, 5, 7}), b = randn({2, 4, 7, 6});
  // The product has a second reader, or is an output itself: it lies in row-major order, and the reshape copies.
  EXPECT_EQ(copies(
                [](auto& x, auto& y) {
                  Tensor p = matmul(x, y), t = p.transpose(1, 2);
                  return std::vector{mul(t.reshape({2, 5, -1}), 2), relu(p)};
                },
                a, b),
            1);
  // A second reader of what is transposed sees the same.
  EXPECT_EQ(copies(
                [](auto& x, auto& y) {
                  Tensor t = matmul(x, y).transpose(1, 2);
                  return std::vector{mul(t.reshape({2, 5, -1}), 2), sum(t, Dims{3})};
                },
                a, b),
            1);
}

TEST(ValueStrides, HeadsThatRanksShare) {
  comm::run_ranks(2, [](int) {
    manual_seed(5);
    RandnOptions o{.placement = placement("cpu", {0, 1}), .sbp = sbp::split(1)};
    Tensor a = randn({2, 4, 5, 7}, o), b = randn({2, 4, 7, 6}, o);
    EXPECT_EQ(copies([&](auto& x, auto& y) { return std::vector{mul(joined(x, y), 2)}; }, a, b), 0);
  });
}

}  // namespace
}  // namespace holon::graph
