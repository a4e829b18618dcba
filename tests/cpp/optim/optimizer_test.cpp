#include "holon/optim/optimizer.h"

#include <gtest/gtest.h>

#include "holon/base/error.h"
#include "holon/optim/schedule.h"
#include "values.h"

namespace holon::optim {
namespace {

using holon::testing::make;
using holon::testing::values_of;
using List = std::vector<double>;

Tensor parameter(const List& values) {
  Tensor p = make(values, float64, {static_cast<int64_t>(values.size())});
  p.set_requires_grad();
  return p;
}

TEST(Optimizer, GroupsHaveOptionsOfTheirOwn) {
  Tensor a = parameter({1}), b = parameter({1});
  SGD sgd({a}, {.lr = 0.5});
  sgd.add_group({b}, {.lr = 0.25});
  a.set_grad(make({1}, float64, {1}));
  b.set_grad(make({1}, float64, {1}));
  sgd.step();
  EXPECT_EQ(values_of(a.array()), List{0.5});
  EXPECT_EQ(values_of(b.array()), List{0.75});
  sgd.set_lr(1);
  sgd.step();
  EXPECT_EQ(values_of(a.array()), List{-0.5});
  EXPECT_EQ(values_of(b.array()), List{-0.25});
  sgd.zero_grad();
  EXPECT_FALSE(a.grad().defined());
  sgd.step();
  EXPECT_EQ(values_of(a.array()), List{-0.5});
}

TEST(Optimizer, RefusesParametersThatAreNotLeavesOrComeTwice) {
  Tensor a = parameter({1});
  EXPECT_THROW(SGD({}, {}), Error);
  EXPECT_THROW(SGD({a, a}, {}), Error);
  EXPECT_THROW(Adam({Tensor()}, {}), Error);
  Adam adam({a});
  EXPECT_THROW(adam.add_group({a}, {}), Error);
}

// A parameter that had no gradient for a while is corrected for bias by the steps that it has made itself.
TEST(Optimizer, AdamCountsTheStepsOfEachParameter) {
  Tensor late = parameter({1}), always = parameter({1}), alone = parameter({1});
  Adam together({always, late}, {.lr = 0.1}), reference({alone}, {.lr = 0.1});
  Tensor g = make({0.3}, float64, {1});
  for (int step = 0; step < 3; ++step) {
    always.set_grad(g);
    if (step == 2) late.set_grad(g);
    together.step();
  }
  alone.set_grad(g);
  reference.step();
  EXPECT_EQ(values_of(late.array()), values_of(alone.array()));
  EXPECT_NE(values_of(always.array()), values_of(alone.array()));
}

TEST(Optimizer, AdamWDecaysTheParameterItself) {
  Tensor p = parameter({2});
  AdamW adamw({p}, {.lr = 0.1, .weight_decay = 0.5});
  p.set_grad(make({0}, float64, {1}));
  adamw.step();
  EXPECT_NEAR(values_of(p.array())[0], 2 * (1 - 0.05), 1e-12);
}

TEST(Optimizer, StateIsNamedByParameter) {
  Tensor a = parameter({1}), b = parameter({1});
  Adam adam({a, b});
  b.set_grad(make({1}, float64, {1}));
  adam.step();
  auto state = adam.state();
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].first, "1.exp_avg");
  EXPECT_EQ(state[1].first, "1.exp_avg_sq");
}

TEST(Clip, ScalesAllGradientsTogether) {
  Tensor a = parameter({0, 0}), b = parameter({0}), none = parameter({0});
  Tensor shared = make({3, 4}, float64, {2});
  a.set_grad(shared);
  b.set_grad(make({12}, float64, {1}));
  std::vector<Tensor> params{a, b, none};
  EXPECT_NEAR(clip_grad_norm(params, 26), 13, 1e-12);
  EXPECT_EQ(values_of(a.grad().array()), (List{3, 4}));  // within the limit: untouched
  EXPECT_NEAR(clip_grad_norm(params, 6.5), 13, 1e-12);
  EXPECT_NEAR(values_of(a.grad().array())[1], 2, 1e-6);
  EXPECT_NEAR(values_of(b.grad().array())[0], 6, 1e-6);
  EXPECT_EQ(values_of(shared.array()), (List{3, 4}));  // whoever else holds the gradient sees it as it was
  EXPECT_THROW(clip_grad_norm(params, -1), Error);
  b.set_grad(make({INFINITY}, float64, {1}));
  EXPECT_THROW(clip_grad_norm(params, 1, true), Error);
}

TEST(Schedule, CosineRisesThenFalls) {
  EXPECT_DOUBLE_EQ(cosine_lr(0, 2, 4, 12), 0.5);
  EXPECT_DOUBLE_EQ(cosine_lr(3, 2, 4, 12), 2);
  EXPECT_DOUBLE_EQ(cosine_lr(4, 2, 4, 12), 2);
  EXPECT_NEAR(cosine_lr(8, 2, 4, 12), 1, 1e-12);
  EXPECT_DOUBLE_EQ(cosine_lr(12, 2, 4, 12, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(cosine_lr(99, 2, 4, 12, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(cosine_lr(0, 2, 0, 10), 2);
}

TEST(Schedule, StepFallsByStairs) {
  EXPECT_DOUBLE_EQ(step_lr(9, 1, 10), 1);
  EXPECT_DOUBLE_EQ(step_lr(10, 1, 10), 0.1);
  EXPECT_DOUBLE_EQ(step_lr(25, 8, 10, 0.5), 2);
  EXPECT_THROW(step_lr(1, 1, 0), Error);
}

}  // namespace
}  // namespace holon::optim
