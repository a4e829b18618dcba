#include "holon/optim/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

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

TEST(Optimizer, AdamWDecaysByDefaultWhateverElseIsGiven) {
  Tensor a = parameter({1}), b = parameter({1}), c = parameter({1});
  AdamW adamw({a}, {.lr = 0.1});
  adamw.add_group({b}, {.eps = 1e-6, .group = {.clip_grad_max_norm = 1}});
  adamw.add_group({c}, {.weight_decay = 0});
  EXPECT_EQ(adamw.rule(0).weight_decay, 0.01);
  EXPECT_EQ(adamw.rule(1).weight_decay, 0.01);
  EXPECT_EQ(adamw.rule(2).weight_decay, 0);
  for (size_t g : {0, 1, 2}) EXPECT_TRUE(adamw.rule(g).decoupled && adamw.rule(g).kind == RuleKind::kAdam);
  a.set_grad(make({0}, float64, {1}));
  adamw.step();
  EXPECT_NEAR(values_of(a.array())[0], 1 - 0.1 * 0.01, 1e-12);
  EXPECT_EQ(Adam({parameter({1})}, {.lr = 0.1}).rule(0).weight_decay, 0);
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
  EXPECT_THROW(clip_grad_norm(params, 1, 2, true), Error);
}

TEST(Optimizer, StateDictGoesOnWhereItWas) {
  auto run = [](Optimizer& o, Tensor p, int steps) {
    for (int i = 0; i < steps; ++i) {
      p.set_grad(make({0.1 * i + 0.2, -0.3}, float64, {2}));
      o.step();
    }
  };
  Tensor a = parameter({1, -2}), b = parameter({1, -2});
  AdamW first({a}, {.lr = 0.05, .weight_decay = 0.1, .amsgrad = true}), second({b}, {.lr = 0.01, .amsgrad = true});
  run(first, a, 3);
  run(second, b, 1);
  StateDict dict = first.state_dict();
  b.data<double>()[0] = a.data<double>()[0];
  b.data<double>()[1] = a.data<double>()[1];
  AdamW third({b}, {.lr = 0.01, .weight_decay = 0.1, .amsgrad = true});
  third.load_state_dict(dict);
  EXPECT_EQ(third.lr(), 0.05);
  run(first, a, 2);
  run(third, b, 2);
  EXPECT_EQ(values_of(a.array()), values_of(b.array()));
}

TEST(Optimizer, StateDictIsStrictAndNamesWhatDiffers) {
  Tensor a = parameter({1, -2});
  Adam adam({a});
  a.set_grad(make({1, 1}, float64, {2}));
  adam.step();
  auto message = [&](const std::function<void(StateDict&)>& spoil) -> std::string {
    StateDict dict = adam.state_dict();
    spoil(dict);
    try {
      adam.load_state_dict(dict);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message([](auto&) {}), "");
  EXPECT_NE(message([](auto& d) { d.tensors.pop_back(); }).find("'0.exp_avg_sq' is missing"), std::string::npos);
  EXPECT_NE(message([](auto& d) { d.tensors[0].first = "0.momentum_buffer"; }).find("missing"), std::string::npos);
  EXPECT_NE(message([](auto& d) {
              d.tensors.push_back({"7.exp_avg", d.tensors[0].second});
            }).find("no '7.exp_avg'"),
            std::string::npos);
  EXPECT_NE(message([](auto& d) { d.tensors[0].second = make({1}, float64, {1}); }).find("'0.exp_avg' is"),
            std::string::npos);
  EXPECT_NE(message([](auto& d) { d.numbers.erase(d.numbers.begin()); }).find("'group0.lr' is missing"),
            std::string::npos);
  SGD other({a, parameter({1})}, {.momentum = 0.9});
  EXPECT_THROW(other.load_state_dict(adam.state_dict()), Error);
}

TEST(Optimizer, ClosureAndZeroGradAndClipGrad) {
  Tensor a = parameter({3}), b = parameter({4});
  SGD sgd({a}, {.lr = 1, .group = {.clip_grad_max_norm = 0.5}});
  sgd.add_group({b}, {.lr = 1});
  Tensor loss = sgd.step([&] {
    EXPECT_TRUE(grad_enabled());
    a.set_grad(make({2}, float64, {1}));
    b.set_grad(make({2}, float64, {1}));
    sgd.clip_grad();
    return make({7}, float64, {});
  });
  EXPECT_EQ(loss.item().as_double(), 7);
  EXPECT_NEAR(values_of(a.array())[0], 2.5, 1e-6);
  EXPECT_EQ(values_of(b.array())[0], 2);
  sgd.zero_grad(false);
  EXPECT_EQ(values_of(b.grad().array())[0], 0);
  sgd.zero_grad();
  EXPECT_FALSE(b.grad().defined());
}

TEST(Clip, AnyNormAndValues) {
  Tensor a = parameter({0, 0}), b = parameter({0});
  std::vector<Tensor> params{a, b};
  auto set = [&] {
    a.set_grad(make({3, -4}, float64, {2}));
    b.set_grad(make({12}, float64, {1}));
  };
  for (auto [p, norm] : {std::pair{1.0, 19.0},
                         {2.0, 13.0},
                         {3.0, std::cbrt(27 + 64 + 1728.0)},
                         {0.0, 2.0},  // gradients that are not 0
                         {double(INFINITY), 12.0},
                         {-double(INFINITY), 3.0}}) {
    set();
    EXPECT_NEAR(clip_grad_norm(params, 1, p), norm, 1e-9);
    EXPECT_NEAR(values_of(a.grad().array())[1], -4 / norm, 1e-5);
  }
  set();
  clip_grad_value(params, 3.5);
  EXPECT_EQ(values_of(a.grad().array()), (List{3, -3.5}));
  EXPECT_EQ(values_of(b.grad().array()), List{3.5});
  EXPECT_THROW(clip_grad_value(params, -1), Error);
  EXPECT_THROW(clip_grad_norm(params, 1, NAN), Error);
  EXPECT_EQ(clip_grad_norm({}, 1), 0);
  set();
  EXPECT_TRUE(scale_grads(params, 0.5));
  EXPECT_EQ(values_of(a.grad().array()), (List{1.5, -2}));
  b.set_grad(make({INFINITY}, float64, {1}));
  EXPECT_FALSE(scale_grads(params, 0.5));
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

TEST(Schedule, FactorsFollowTheirFormulas) {
  const int64_t milestones[] = {2, 5};
  for (int64_t t = 0; t < 12; ++t) {
    auto x = static_cast<double>(t);
    EXPECT_DOUBLE_EQ(multi_step_factor(t, milestones, 0.5), std::pow(0.5, (t >= 2) + (t >= 5)));
    EXPECT_DOUBLE_EQ(exponential_factor(t, 0.9), std::pow(0.9, x));
    EXPECT_DOUBLE_EQ(constant_factor(t, 0.3, 4), t < 4 ? 0.3 : 1);
    EXPECT_DOUBLE_EQ(linear_factor(t, 0.2, 1, 4), t < 4 ? 0.2 + 0.8 * x / 4 : 1);
    EXPECT_DOUBLE_EQ(cosine_decay_factor(t, 8, 0.1), t < 8 ? 0.1 + 0.9 * (1 + std::cos(M_PI * x / 8)) / 2 : 0.1);
    EXPECT_DOUBLE_EQ(warmup_factor(t, 0.5, 4, "linear"), t < 4 ? 0.5 + 0.5 * x / 4 : 1);
    EXPECT_DOUBLE_EQ(warmup_factor(t, 0.5, 4, "constant"), t < 4 ? 0.5 : 1);
    EXPECT_DOUBLE_EQ(cosine_annealing_lr(t, 2, 5, 0.5), 0.5 + 1.5 * (1 + std::cos(M_PI * x / 5)) / 2);
    EXPECT_DOUBLE_EQ(polynomial_lr(t, 2, 5, 0.5, 2, false), t < 5 ? 1.5 * (1 - x / 5) * (1 - x / 5) + 0.5 : 0.5);
    double period = t <= 5 ? 5 : t <= 10 ? 10 : 15;
    EXPECT_DOUBLE_EQ(polynomial_lr(t, 2, 5, 0.5, 1, true), 1.5 * (1 - std::max(1.0, x) / period) + 0.5);
    double at = t < 2 ? x / 2 : t < 6 ? (x - 2) / 4 : (x - 6) / 8;
    EXPECT_DOUBLE_EQ(cosine_warm_restarts_lr(t, 2, 2, 2, 0), 1 + std::cos(M_PI * at));
  }
  // Each restart begins at a rate lower by the decay, until there are no more.
  EXPECT_DOUBLE_EQ(cosine_warm_restarts_lr(2, 2, 2, 2, 0.1, 0.5), 1);
  EXPECT_DOUBLE_EQ(cosine_warm_restarts_lr(7, 2, 2, 1, 0.1, 0.5), 0.1 + (0.25 - 0.1) / 2);
  EXPECT_DOUBLE_EQ(cosine_warm_restarts_lr(1, 2, 2, 2, 0.1, 0.5, 1), 0.1 + 1.9 / 2);
  EXPECT_DOUBLE_EQ(cosine_warm_restarts_lr(2, 2, 2, 2, 0.1, 0.5, 1), 0.1);
  EXPECT_THROW(warmup_factor(0, 1, 1, "quick"), Error);
  EXPECT_THROW(polynomial_lr(0, 1, 0, 0, 1, false), Error);
}

TEST(Schedule, OneCycleRisesAndFalls) {
  OneCycle c{.peak = 1, .total_steps = 11, .pct_start = 0.5, .linear = true, .div_factor = 10, .final_div_factor = 10};
  // Up to step 4.5 from 0.1 to 1, down to step 10 to 0.01.
  for (int64_t t = 0; t < 11; ++t) {
    auto x = static_cast<double>(t);
    EXPECT_NEAR(c.lr(t), t <= 4 ? 0.1 + 0.9 * x / 4.5 : 1 - 0.99 * (x - 4.5) / 5.5, 1e-12) << t;
    EXPECT_NEAR(c.momentum(t), t <= 4 ? 0.95 - 0.1 * x / 4.5 : 0.85 + 0.1 * (x - 4.5) / 5.5, 1e-12) << t;
  }
  EXPECT_THROW(c.lr(12), Error);
}

TEST(Schedule, CyclicGoesBackAndForth) {
  Cyclic c{.step_size_up = 2, .step_size_down = 4};
  const double share[] = {0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0.5};
  for (int64_t t = 0; t < 8; ++t) EXPECT_DOUBLE_EQ(c.lr(t, 1, 3), 1 + 2 * share[t]);
  c.mode = Cyclic::Mode::kTriangular2;
  EXPECT_DOUBLE_EQ(c.share(8), 0.5);
  c.mode = Cyclic::Mode::kExpRange;
  c.gamma = 0.9;
  EXPECT_DOUBLE_EQ(c.share(8), std::pow(0.9, 8));
}

TEST(Schedule, PlateauWaits) {
  Plateau p{.patience = 1, .cooldown = 1, .threshold = 0.1};
  EXPECT_FALSE(p.observe(1));
  EXPECT_FALSE(p.observe(0.95));  // not better by a tenth
  EXPECT_TRUE(p.observe(0.95));
  EXPECT_FALSE(p.observe(0.95));  // cools down
  EXPECT_FALSE(p.observe(0.95));
  EXPECT_TRUE(p.observe(0.95));
  EXPECT_FALSE(p.observe(0.5));
  EXPECT_EQ(p.best, 0.5);
}

}  // namespace
}  // namespace holon::optim
