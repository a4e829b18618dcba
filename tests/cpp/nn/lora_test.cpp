// Low-rank adapters next to products: the same as a weight with B A added, with gradients of their own.
#include "holon/nn/lora.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "error_of.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/nn/attention.h"
#include "holon/nn/init.h"
#include "holon/nn/quantize.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::nn {
namespace {

using comm::run_ranks;

// Two products: the outputs of the first and the inputs of the second are split, or nothing is.
struct Net : Layer<Net> {
  Linear up, down;
  explicit Net(const Placement& placement = {}, const NdSbp& first = {}, const NdSbp& second = {},
               DType dtype = float64)
      : up(8, 12, {.placement = placement, .sbp = first, .dtype = dtype}),
        down(12, 6, {.placement = placement, .sbp = second, .dtype = dtype}) {
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x) const { return down(tanh(up(x))); }
};

double apart(const Tensor& a, const Tensor& b) {
  NoGradGuard guard;
  const Tensor x = a.full(), y = b.full();
  return x.shape() == y.shape() ? amax(abs(x - y)).item().as_double() : INFINITY;
}

// Adapters whose B is not 0.
Lora drawn(Net& net, const LoraOptions& options) {
  Lora lora(net, linear_modules(net), options);
  for (auto& [name, t] : lora.state_dict())
    if (name.ends_with("lora_B.weight")) init::normal_(t);
  return lora;
}

TEST(Lora, IsThatOfTheMergedWeight) {
  manual_seed(3);
  for (bool rslora : {false, true}) {
    Net net;
    const Tensor x = randn({5, 8}, {.dtype = float64});
    const Tensor before = net(x).detach();
    const Tensor weight = clone(net.up.weight.detach());
    Lora lora(net, linear_modules(net), {.r = 3, .alpha = 7, .rslora = rslora});
    EXPECT_EQ(apart(net(x), before), 0);  // B is 0
    for (auto& [name, t] : lora.state_dict())
      if (name.ends_with("lora_B.weight")) init::normal_(t);
    const Tensor wanted = net(x).detach();
    EXPECT_GT(apart(wanted, before), 0.1);
    lora.merge();
    EXPECT_TRUE(lora.is_merged());
    EXPECT_LT(apart(net(x), wanted), 1e-12);
    const double scale = 7 / (rslora ? std::sqrt(3.0) : 3.0);
    const Tensor a = net.get_parameter("up.lora_A.weight").detach();
    const Tensor b = net.get_parameter("up.lora_B.weight").detach();
    EXPECT_LT(apart(net.up.weight.detach(), weight + matmul(b, a) * scale), 1e-12);
    lora.unmerge();
    EXPECT_LT(apart(net(x), wanted), 1e-12);
    EXPECT_LT(apart(net.up.weight.detach(), weight), 1e-12);
    lora.merge();
    lora.remove();
    EXPECT_LT(apart(net(x), wanted), 1e-12);  // without adapters, with the weights as they were merged
    EXPECT_EQ(net.named_parameters().size(), 4U);
    EXPECT_TRUE(net.up.weight.requires_grad());
  }
}

TEST(Lora, OnlyAdaptersAreLearned) {
  Net net;
  net.up.bias.set_requires_grad(false);
  Lora lora(net, {{"up"}}, {.r = 2});
  std::set<std::string> learned;
  for (auto& [name, p] : net.named_parameters())
    if (p.requires_grad()) learned.insert(name);
  EXPECT_EQ(learned, (std::set<std::string>{"up.lora_A.weight", "up.lora_B.weight"}));
  EXPECT_EQ(net.get_parameter("up.lora_A.weight").shape(), (Dims{2, 8}));
  EXPECT_EQ(net.get_parameter("up.lora_B.weight").shape(), (Dims{12, 2}));
  sum(net(ones({1, 8}, {.dtype = float64}))).backward();
  EXPECT_FALSE(net.up.weight.grad().defined());
  EXPECT_TRUE(net.get_parameter("up.lora_B.weight").grad().defined());
  lora.remove();
  EXPECT_TRUE(net.up.weight.requires_grad());
  EXPECT_FALSE(net.up.bias.requires_grad());  // as before
}

TEST(Lora, GradientsAreThoseOfFiniteDifferences) {
  manual_seed(4);
  Net net;
  Lora lora = drawn(net, {.r = 2, .alpha = 3});
  const Tensor x = randn({5, 8}, {.dtype = float64}), weights = randn({5, 6}, {.dtype = float64});
  auto loss = [&] { return sum(net(x) * weights); };
  loss().backward();
  for (auto& [name, p] : lora.state_dict()) {
    Tensor t = p;
    const Tensor gradient = t.grad();
    ASSERT_TRUE(gradient.defined()) << name;
    NoGradGuard guard;
    auto* values = t.array().data<double>();
    const auto* found = gradient.array().data<double>();
    for (int64_t i = 0; i < t.numel(); i += 5) {
      const double kept = values[i], step = 1e-6;
      values[i] = kept + step;
      const double high = loss().item().as_double();
      values[i] = kept - step;
      const double low = loss().item().as_double();
      values[i] = kept;
      EXPECT_NEAR(found[i], (high - low) / (2 * step), 1e-6) << name << i;
    }
  }
}

// On two ranks: layouts of the factors, values and gradients.
TEST(Lora, FactorsAreSplitAsTheWeightsAre) {
  Tensor whole;
  std::vector<std::pair<std::string, Tensor>> gradients;
  auto run = [&](const Placement& placement, const NdSbp& first, const NdSbp& second, const NdSbp& rows) {
    manual_seed(5);
    Net net(placement, first, second);
    Lora lora = drawn(net, {.r = 3});
    const Tensor x = randn({5, 8}, {.placement = placement, .sbp = rows, .dtype = float64});
    const Tensor y = net(x);
    sum(square(y)).backward();
    return std::pair(y, lora.state_dict());
  };
  run_ranks(1, [&](int) {
    auto [y, factors] = run(Placement("cpu", {0}), sbp::broadcast(), sbp::broadcast(), sbp::broadcast());
    whole = y.to_local().detach();
    for (auto& [name, t] : factors) gradients.emplace_back(name, t.grad().to_local());
  });
  struct Case {
    Sbp first, second, rows;
    std::vector<Sbp> factors;  // up A, up B, down A, down B
    bool partial;
  };
  const Sbp b = sbp::broadcast(), s0 = sbp::split(0), s1 = sbp::split(1);
  for (auto& c : {Case{s0, s1, b, {b, s0, s1, b}, true}, Case{b, b, s0, {b, b, b, b}, false}})
    run_ranks(2, [&](int) {
      auto [y, factors] = run(Placement("cpu", {0, 1}), c.first, c.second, c.rows);
      EXPECT_EQ(y.nd_sbp()[0].is_partial(), c.partial);  // the adapter's partial sum flows on with that of the weight
      EXPECT_LT(apart(y, whole), 1e-12);
      for (size_t i = 0; i < factors.size(); ++i) {
        const auto& [name, t] = factors[i];
        EXPECT_EQ(t.nd_sbp(), NdSbp(c.factors[i])) << name;
        EXPECT_LT(apart(t.grad(), gradients[i].second), 1e-11) << name;
      }
    });
}

TEST(Lora, DropsOutWhileTraining) {
  manual_seed(6);
  Net net;
  Lora lora = drawn(net, {.r = 2, .dropout = 0.5});
  const Tensor x = ones({4, 8}, {.dtype = float64});
  const Tensor trained = net(x).detach();
  EXPECT_GT(apart(net(x), trained), 1e-3);
  net.eval();
  const Tensor evaluated = net(x).detach();
  EXPECT_EQ(apart(net(x), evaluated), 0);
  EXPECT_GT(apart(trained, evaluated), 1e-3);
}

TEST(Lora, NextToQuantisedWeights) {
  manual_seed(7);
  Net net({}, {}, {}, float32);
  nn::quantize(net, linear_modules(net), {.bits = 8, .group_size = 4});
  Lora lora(net, linear_modules(net), {.r = 2}, 4);
  EXPECT_EQ(net.get_parameter("up.lora_A.weight").shape(), (Dims{2, 8}));
  EXPECT_EQ(net.get_parameter("down.lora_B.weight").dtype(), float32);
  for (auto& [name, t] : lora.state_dict())
    if (name.ends_with("lora_B.weight")) init::normal_(t);
  sum(square(net(ones({3, 8})))).backward();
  // Through the second product, whose weight is integers.
  EXPECT_GT(amax(abs(net.get_parameter("up.lora_A.weight").grad())).item().as_double(), 1e-3);
  EXPECT_NE(error_of([&] { lora.merge(); }).find("the weight of 'up' is quantised"), std::string::npos);
  EXPECT_FALSE(lora.is_merged());
}

TEST(Lora, ProductsThatAreCalled) {
  TransformerEncoderLayer layer(8, 2, {.dim_feedforward = 16});
  std::set<std::string> paths;
  for (auto& p : linear_modules(layer)) paths.insert(p.path);
  EXPECT_EQ(paths, (std::set<std::string>{"linear1", "linear2"}));  // attention's out_proj is not
  EXPECT_TRUE(linear_modules(MultiheadAttention(8, 2)).empty());
  EXPECT_TRUE(linear_modules(MultiheadAttention(8, 2, {.packed = false})).empty());
}

TEST(Lora, AdaptersOfHalfAreFloat32) {
  manual_seed(8);
  Net net({}, {}, {}, bfloat16);
  Lora lora = drawn(net, {.r = 2});
  EXPECT_EQ(net.get_parameter("up.lora_A.weight").dtype(), float32);
  const Tensor y = net(ones({3, 8}, {.dtype = bfloat16}));
  EXPECT_EQ(y.dtype(), bfloat16);
  sum(y).backward();
  EXPECT_EQ(net.get_parameter("up.lora_A.weight").grad().dtype(), float32);
}

TEST(Lora, WhatIsWrongIsAnErrorBeforeAnythingChanges) {
  Net net;
  auto refuses = [&](const std::vector<ProductModule>& products, const LoraOptions& options, const char* text) {
    EXPECT_NE(value_error_of([&] { Lora(net, products, options); }).find(text), std::string::npos) << text;
    EXPECT_EQ(net.named_parameters().size(), 4U);
    EXPECT_TRUE(net.up.weight.requires_grad());
  };
  refuses({{"up"}}, {.r = 0}, "r is 0");
  refuses({{"up"}}, {.alpha = NAN}, "alpha is nan");
  refuses({{"up"}}, {.dropout = 2}, "a probability must be from 0 to 1");
  refuses({}, {}, "there are no modules");
  refuses({{"side"}}, {}, "no submodule 'side'");
  Lora lora(net, {{"up"}}, {});
  EXPECT_NE(value_error_of([&] { Lora(net, {{"up"}}, {}); }).find("'up' has an adapter already"), std::string::npos);
  EXPECT_NE(error_of([&] { lora.unmerge(); }).find("are not merged"), std::string::npos);
  lora.merge();
  EXPECT_NE(error_of([&] { lora.merge(); }).find("merged already"), std::string::npos);
  EXPECT_NE(value_error_of([&] { net.remove_module("up"); }).find("held by a member"), std::string::npos);
  EXPECT_NE(value_error_of([&] { net.remove_module("side"); }).find("no submodule 'side'"), std::string::npos);
}

}  // namespace
}  // namespace holon::nn
