#include "holon/nn/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/nn/layers.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/linalg.h"
#include "holon/ops/loss.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"

namespace holon::nn {
namespace {

double mean_of(const Tensor& t) {
  NoGradGuard guard;
  return mean(t).item().as_double();
}
double largest(const Tensor& t) {
  NoGradGuard guard;
  return amax(abs(t)).item().as_double();
}

TEST(Norm, BatchNormKeepsWhatItSaw) {
  BatchNorm2d norm(3, {.momentum = 0.5});
  Tensor x = randn({4, 3, 5, 5}) * 3.0 + Scalar(2.0);
  Tensor y = norm(x);
  EXPECT_LT(largest(mean(y, Dims{0, 2, 3})), 1e-4);
  EXPECT_NEAR(mean_of(square(y)), 1, 1e-3);
  EXPECT_NEAR(mean_of(norm.running_mean), 0.5 * mean_of(x), 1e-4);
  EXPECT_EQ(norm.num_batches_tracked.item().as_int(), 1);
  norm.eval();
  EXPECT_GT(std::abs(mean_of(norm(x))), 0.1);
  EXPECT_EQ(norm.num_batches_tracked.item().as_int(), 1);
  norm.reset_running_stats();
  EXPECT_EQ(largest(norm.running_mean), 0);
  EXPECT_EQ(norm.state_dict().size(), 5u);
  EXPECT_THROW(norm(ones({4, 3})), Error);
  EXPECT_EQ(BatchNorm1d(3, {.affine = false, .track_running_stats = false}).state_dict().size(), 0u);
  BatchNorm1d even(2, {.momentum = std::nullopt});
  even(full({1, 2}, 0.0) + arange(4).to(float32).reshape({4, 1}));
  even(full({4, 2}, 4.5) + arange(4).to(float32).reshape({4, 1}));
  EXPECT_NEAR(mean_of(even.running_mean), (1.5 + 6.0) / 2, 1e-5);
}

TEST(Norm, SamplesGroupsAndLastAxes) {
  Tensor x = randn({2, 4, 6}) * 2.0 + Scalar(1.0);
  EXPECT_LT(largest(mean(InstanceNorm1d(4)(x), Dims{2})), 1e-4);
  EXPECT_LT(largest(mean(GroupNorm(2, 4)(x).reshape({2, 2, 12}), Dims{2})), 1e-4);
  EXPECT_NEAR(mean_of(square(RMSNorm({6})(x))), 1, 1e-3);
  EXPECT_LT(largest(mean(LayerNorm({4, 6}, {.bias = false})(x), Dims{1, 2})), 1e-4);
  EXPECT_THROW(GroupNorm(3, 4), Error);
  EXPECT_THROW(InstanceNorm2d(4)(x), Error);
}

// Statistics are those of the logical batch: training on two ranks is training on one.
TEST(Norm, TrainingOnTwoRanksEqualsOne) {
  std::vector<double> expected;
  auto train = [](int64_t ranks) {
    std::vector<int64_t> all;
    for (int64_t r = 0; r < ranks; ++r) all.push_back(r);
    Placement p("cpu", all);
    manual_seed(5);
    Sequential model(Linear(6, 8, {.placement = p, .sbp = sbp::broadcast()}),
                     BatchNorm1d(8, {.placement = p, .sbp = sbp::broadcast()}), ReLU(),
                     Linear(8, 1, {.placement = p, .sbp = sbp::broadcast()}));
    std::vector<double> losses;
    for (int step = 0; step < 5; ++step) {
      Tensor x = randn({7, 6}, {.placement = p, .sbp = sbp::split(0)});
      Tensor loss = mse_loss(model(x), sum(x, Dims{1}, true));
      model.zero_grad();
      loss.backward();
      NoGradGuard guard;
      for (Tensor parameter : model.parameters()) sub_(parameter, parameter.grad() * 0.05);
      losses.push_back(loss.item().as_double());
    }
    model.eval();
    losses.push_back(model(ones({1, 6}, {.placement = p, .sbp = sbp::broadcast()})).item().as_double());
    return losses;
  };
  comm::run_ranks(1, [&](int) { expected = train(1); });
  comm::run_ranks(2, [&](int) {
    auto losses = train(2);
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4);
  });
}

}  // namespace
}  // namespace holon::nn
