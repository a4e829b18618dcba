// Batch norm over ranks: statistics of the whole batch, and running ones that all ranks agree on; attention's dropout.
#include <algorithm>

#include <gtest/gtest.h>

#include "cases.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/attention.h"
#include "holon/ops/batch_norm.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"

namespace holon::testing {
namespace {

using sbp::broadcast;
using sbp::partial_sum;
using sbp::split;

struct Step {
  std::vector<double> y, mean, var, dx, dw;
};

Step train(const Tensor& x, const Tensor& mean, const Tensor& var, const Tensor& w, const Tensor& b, const Tensor& dy) {
  auto full = [](const Tensor& t) { return values_of((t.is_global() ? t.full() : t).array()); };
  Tensor y;
  for (int i = 0; i < 2; ++i) y = batch_norm(x, mean, var, w, b, true, 0.3);
  y.backward(dy);
  return {full(y), full(mean), full(var), full(x.grad()), full(w.grad())};
}

TEST(BatchNorm, OfSplitBatchesIsThatOfTheWhole) {
  // 5 samples on 2, 3 and 2x2 ranks: parts of different sizes.
  for (int ranks : {2, 3, 4})
    comm::run_ranks(ranks, [&](int) {
      Placement p = ranks == 4 ? Placement("cpu", {2, 2}, {0, 1, 2, 3}) : Placement::all("cpu");
      int axes = ranks == 4 ? 2 : 1;
      NdSbp whole = NdSbp::filled(axes, broadcast());
      auto fresh = [&](const Dims& shape, double scale, int64_t counter, const NdSbp& sbp) {
        Tensor t =
            to_global(mul(randn(shape, {.seed = 7, .counter = counter, .placement = p, .sbp = whole}), scale), p, sbp);
        return t.detach();
      };
      auto step = [&](const NdSbp& of_x, const NdSbp& of_c) {
        Tensor x = fresh({5, 4, 3}, 2, 1, of_x).set_requires_grad(), w = fresh({4}, 1, 2, of_c).set_requires_grad(),
               b = fresh({4}, 1, 3, of_c).set_requires_grad();
        Tensor mean = zeros({4}, {.placement = p, .sbp = of_c}), var = ones({4}, {.placement = p, .sbp = of_c});
        return train(x, mean, var, w, b, fresh({5, 4, 3}, 1, 4, of_x));
      };
      Step truth = step(whole, whole);
      for (auto& [of_x, of_c] : {std::pair{NdSbp::filled(axes, split(0)), whole},
                                 {NdSbp::filled(axes, split(2)), whole},
                                 {NdSbp::filled(axes, split(1)), NdSbp::filled(axes, split(0))},
                                 {NdSbp::filled(axes, partial_sum()), whole}}) {
        Step s = step(of_x, of_c);
        EXPECT_EQ(differs(s.y, truth.y, 1e-5), "") << of_x.str();
        EXPECT_EQ(differs(s.mean, truth.mean, 1e-5), "") << of_x.str();
        EXPECT_EQ(differs(s.var, truth.var, 1e-5), "") << of_x.str();
        EXPECT_EQ(differs(s.dx, truth.dx, 1e-4), "") << of_x.str();
        EXPECT_EQ(differs(s.dw, truth.dw, 1e-5), "") << of_x.str();
      }
    });
}

TEST(BatchNorm, RunningStatisticsTakeInTheBatch) {
  Tensor x = Tensor::local(array_of({1, 2, 3, 6}, {4, 1}, float32)), mean = ones({1}), var = ones({1});
  batch_norm(x, mean, var, {}, {}, true, 0.25);
  EXPECT_EQ(values_of(mean.array()), std::vector<double>({0.75 + 0.25 * 3}));
  EXPECT_EQ(differs(values_of(var.array()), {0.75 + 0.25 * 14.0 / 3}, 1e-6), "");
  batch_norm(x, mean, var, {}, {}, false);
  EXPECT_EQ(values_of(mean.array()), std::vector<double>({1.5}));
}

TEST(Attention, DropsTheShareThatIsAskedFor) {
  // Equal scores and values: a row's result is the share of its keys that was kept, over 1 - p.
  Tensor q = zeros({2, 3, 40, 8}), k = zeros({2, 3, 500, 8}), v = ones({2, 3, 500, 8});
  auto y = values_of(scaled_dot_product_attention(q, k, v, {}, 0.25).array());
  double mean = 0, low = 1, high = 1;
  for (double e : y) mean += e / static_cast<double>(y.size()), low = std::min(low, e), high = std::max(high, e);
  EXPECT_NEAR(mean, 1, 0.01);
  EXPECT_LT(low, 0.99);
  EXPECT_GT(high, 1.01);
  EXPECT_NE(values_of(scaled_dot_product_attention(q, k, v, {}, 0.25).array()), y);
  EXPECT_EQ(values_of(scaled_dot_product_attention(q, k, v, {}, 1.0).array()), std::vector<double>(y.size(), 0.0));
}

}  // namespace
}  // namespace holon::testing
