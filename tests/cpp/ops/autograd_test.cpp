// The tape: accumulation, graphs kept and freed, hooks, second derivatives, changes in place, and gradients between
// local and global tensors.
#include "holon/autograd/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cases.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/ops/unary.h"

namespace holon::testing {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<double>;
using sbp::broadcast;
using sbp::partial_sum;
using sbp::split;

Tensor leaf(const Values& v, const Dims& shape) {
  return Tensor::local(array_of(v, shape, float64)).set_requires_grad();
}
Tensor leaf(const Values& v) { return leaf(v, {static_cast<int64_t>(v.size())}); }
Values values(const Tensor& t) { return values_of(t.full().array()); }

template <class F>
void expect_error(F f, const char* words) {
  try {
    f();
    ADD_FAILURE() << "no error; expected one with " << words;
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(words));
  }
}

TEST(Autograd, Accumulates) {
  Tensor x = leaf({1, 2, 3});
  square(x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 4, 6}));
  (x * 3.0).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{5, 7, 9}));
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
  // Used twice in one graph, and by itself.
  (x * x + x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{3, 5, 7}));
  Tensor y = leaf({4, 5});
  y.backward(ones({2}, {.dtype = float64}));
  EXPECT_EQ(values(y.grad()), (Values{1, 1}));
}

TEST(Autograd, KeptGradientsAreNobodyElses) {
  // Both leaves get the same gradient tensor: adding to one must leave the other alone.
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  Tensor dy = ones({2}, {.dtype = float64});
  (a + b).backward(dy);
  a.sum().backward();
  EXPECT_EQ(values(a.grad()), (Values{2, 2}));
  EXPECT_EQ(values(b.grad()), (Values{1, 1}));
  EXPECT_EQ(values(dy), (Values{1, 1}));
  // A branch's sum is formed in memory that no other branch reads.
  Tensor x = leaf({1, 2});
  Tensor h = x * 2.0;
  Tensor u = clone(h), v = clone(h);
  (u + v + h).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{6, 6}));
}

TEST(Autograd, RetainGraph) {
  Tensor x = leaf({1, 2, 3});
  Tensor y = exp(x).sum();
  y.backward({}, true);
  Values once = values(x.grad());
  y.backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(values(x.grad())[i], 2 * once[i]);
  expect_error([&] { y.backward(); }, "retain_graph");
}

TEST(Autograd, BackwardTwiceIsRefusedWhereValuesWereFreed) {
  Tensor x = leaf({1, 2, 3});
  Tensor y = square(x).sum();
  y.backward();
  expect_error([&] { y.backward(); }, "retain_graph");
  Tensor plain = (x * 2.0).sum();  // keeps no values
  x.set_grad({});
  plain.backward();
  plain.backward();
  EXPECT_EQ(values(x.grad()), (Values{4, 4, 4}));
}

TEST(Autograd, WhatCannotBeDerived) {
  Tensor x = leaf({1, 2});
  expect_error([&] { (x * 2.0).backward(); }, "one element");
  expect_error([&] { ones({1}).backward(); }, "does not require grad");
  expect_error([&] { (x * 2.0).backward(ones({3}, {.dtype = float64})); }, "[3]");
  expect_error([&] { ones({2}, {.dtype = int64}).set_requires_grad(); }, "int64");
  expect_error([&] { (x * 2.0).set_requires_grad(false); }, "leaf");
  Tensor used = leaf({1}), unused = leaf({1});
  Tensor y = used.sum();
  Tensor roots[] = {y}, inputs[] = {used, unused};
  expect_error([&] { autograd::grad(roots, inputs, {}, true, false, false); }, "not used");
  auto g = autograd::grad(roots, inputs, {}, true, false, true);
  EXPECT_TRUE(g[0].defined());
  EXPECT_FALSE(g[1].defined());
  EXPECT_FALSE(used.grad().defined());
}

TEST(Autograd, GradientOfAResult) {
  Tensor x = leaf({1, 2});
  Tensor h = x * 3.0;
  Tensor y = square(h).sum();
  Tensor roots[] = {y}, inputs[] = {h, x};
  auto g = autograd::grad(roots, inputs, {}, false, false, false);
  EXPECT_EQ(values(g[0]), (Values{6, 12}));
  EXPECT_EQ(values(g[1]), (Values{18, 36}));
}

TEST(Autograd, SecondDerivatives) {
  Tensor x = leaf({0.5, 1, 2});
  auto second = [&](const Tensor& y) {
    Tensor roots[] = {y}, inputs[] = {x};
    Tensor first = autograd::grad(roots, inputs, {}, false, true, false)[0];
    EXPECT_TRUE(first.requires_grad());
    Tensor again[] = {first.sum()};
    return values(autograd::grad(again, inputs, {}, false, false, false)[0]);
  };
  EXPECT_EQ(differs(second((x * x * x).sum()), {3, 6, 12}, 1e-12), "");
  EXPECT_EQ(differs(second(sin(x).sum()), {-std::sin(0.5), -std::sin(1.0), -std::sin(2.0)}, 1e-12), "");
  EXPECT_EQ(differs(second(exp(x).sum()), {std::exp(0.5), std::exp(1.0), std::exp(2.0)}, 1e-12), "");
  EXPECT_EQ(differs(second(log(x).sum()), {-4, -1, -0.25}, 1e-12), "");
  auto of_tanh = [](double v) {
    double t = std::tanh(v);
    return -2 * t * (1 - t * t);
  };
  EXPECT_EQ(differs(second(tanh(x).sum()), {of_tanh(0.5), of_tanh(1), of_tanh(2)}, 1e-12), "");
  auto of_sigmoid = [](double v) {
    double s = 1 / (1 + std::exp(-v));
    return s * (1 - s) * (1 - 2 * s);
  };
  EXPECT_EQ(differs(second(sigmoid(x).sum()), {of_sigmoid(0.5), of_sigmoid(1), of_sigmoid(2)}, 1e-12), "");
  EXPECT_EQ(differs(second(reciprocal(x).sum()), {16, 2, 0.25}, 1e-12), "");
  EXPECT_EQ(differs(second(pow(x, 3.0).sum()), {3, 6, 12}, 1e-12), "");
}

// d/dx of a gradient's square, through ops whose gradients are ops of their own, against differences.
TEST(Autograd, SecondDerivativesOfProducts) {
  Values w{0.3, -0.7, 0.2, 0.5, 0.1, -0.4};
  auto penalty = [&](const Tensor& x) {
    Tensor m = Tensor::local(array_of(w, {3, 2}, float64));
    Tensor y =
        square(matmul(x, m)).sum() + linear(square(x), transpose(m, 0, 1)).sum() + slice(square(x), 1, 0, 2).sum();
    Tensor roots[] = {y}, inputs[] = {x};
    return square(autograd::grad(roots, inputs, {}, false, true, false)[0]).sum();
  };
  Values at{0.4, -0.2, 0.9, 0.1, 0.6, -0.5};
  Tensor x = leaf(at, {2, 3});
  penalty(x).backward();
  Values g = values(x.grad());
  for (size_t i = 0; i < at.size(); ++i) {
    Values up = at, down = at;
    up[i] += 1e-5;
    down[i] -= 1e-5;
    double numeric =
        (penalty(leaf(up, {2, 3})).item().as_double() - penalty(leaf(down, {2, 3})).item().as_double()) / 2e-5;
    EXPECT_NEAR(g[i], numeric, 1e-6);
  }
}

TEST(Autograd, CreateGraphAccumulatesIntoGrad) {
  Tensor x = leaf({2});
  Tensor y = (x * x * x).sum();
  y.backward({}, false, true);
  EXPECT_EQ(values(x.grad()), (Values{12}));
  Tensor g = x.grad();
  x.set_grad({});
  g.sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{12}));
}

TEST(Autograd, Hooks) {
  Tensor x = leaf({1, 2});
  int calls = 0;
  x.register_hook([&](const Tensor& g) {
    ++calls;
    return g * 10.0;
  });
  Tensor h = x * 2.0;
  h.register_hook([&](const Tensor& g) {
    EXPECT_EQ(values(g), (Values{3, 3}));
    return Tensor();
  });
  (h * 3.0).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(values(x.grad()), (Values{60, 60}));
  expect_error([] { ones({1}).register_hook([](const Tensor& g) { return g; }); }, "does not require grad");
}

TEST(Autograd, ALeafsHookSeesTheSumOfAllItsUses) {
  Tensor x = leaf({1, 2});
  std::vector<Values> seen;
  x.register_hook([&](const Tensor& g) {
    seen.push_back(values(g));
    return g * 2.0 + 1.0;
  });
  (x.sum() + (x * 2.0).sum()).backward();
  EXPECT_EQ(seen, std::vector<Values>({{3, 3}}));
  EXPECT_EQ(values(x.grad()), (Values{7, 7}));
  Tensor y = x.sum() + (x * 2.0).sum();
  EXPECT_EQ(values(autograd::grad({&y, 1}, {&x, 1}, {}, false, false, false)[0]), (Values{7, 7}));
}

TEST(Autograd, ASecondDerivativeThatIsZero) {
  Tensor x = leaf({1, -2}), other = leaf({1});
  for (auto f : {+[](const Tensor& t) { return relu(t).sum(); }, +[](const Tensor& t) { return abs(t).sum(); },
                 +[](const Tensor& t) { return (t * 3.0).sum(); }}) {
    Tensor y = f(x);
    Tensor first = autograd::grad({&y, 1}, {&x, 1}, {}, true, true, false)[0].sum();
    EXPECT_EQ(values(autograd::grad({&first, 1}, {&x, 1}, {}, false, false, false)[0]), (Values{0, 0}));
  }
  Tensor y = relu(x).sum();
  expect_error([&] { autograd::grad({&y, 1}, {&other, 1}, {}, false, false, false); }, "was not used");
}

TEST(Autograd, RetainGrad) {
  Tensor x = leaf({1, 2});
  Tensor h = x * 2.0, other = x * 4.0;
  h.retain_grad();
  (square(h) + other).sum().backward();
  EXPECT_EQ(values(h.grad()), (Values{4, 8}));
  EXPECT_FALSE(other.grad().defined());
  EXPECT_EQ(values(x.grad()), (Values{12, 20}));
}

TEST(Autograd, NoGradAndDetach) {
  Tensor x = leaf({1, 2});
  {
    NoGradGuard guard;
    EXPECT_FALSE((x * 2.0).requires_grad());
    {
      NoGradGuard on(true);
      EXPECT_TRUE((x * 2.0).requires_grad());
    }
  }
  EXPECT_TRUE((x * 2.0).requires_grad());
  (x.detach() * x).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{1, 2}));
  EXPECT_FALSE(eq(x, x).requires_grad());
  EXPECT_FALSE(cast(x, int64).requires_grad());
}

TEST(Autograd, ChangesInPlace) {
  Tensor x = leaf({1, 2});
  expect_error([&] { add_(x, ones({2}, {.dtype = float64})); }, "leaf");
  {
    NoGradGuard guard;
    mul_(x, 3.0);
  }
  EXPECT_EQ(values(x), (Values{3, 6}));
  // In place on a result: the gradient goes through the change.
  Tensor h = x * 2.0;
  mul_(h, 5.0);
  h.sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{10, 10}));
  // A value that backward needs was changed after it was kept.
  Tensor y = exp(x);
  Tensor z = y.sum();
  {
    NoGradGuard guard;
    mul_(y, 0.0);
  }
  expect_error([&] { z.backward(); }, "changed in place");
  Tensor a = x * 1.0;
  Tensor b = square(a).sum();
  fill_(a, 0.0);
  expect_error([&] { b.backward(); }, "changed in place");
  // Through a view (tests/cpp/dispatch/views_test.cpp).
  Tensor v = x * 1.0;
  mul_(slice(v, 0, 0, 1), 2.0);
  EXPECT_EQ(values(autograd::grad(std::vector{v.sum()}, std::vector{x}, {}, false, false, false)[0]), (Values{2, 1}));
}

TEST(Autograd, SeveralOutputs) {
  Tensor x = leaf({1, 2, 3, 4, 5});
  auto parts = holon::split(x, {2, 3});
  (parts[0] * 2.0).sum().backward();
  EXPECT_EQ(values(x.grad()), (Values{2, 2, 0, 0, 0}));
}

TEST(Autograd, LongChainsAreFreedWithoutRecursion) {
  Tensor x = leaf({1});
  Tensor y = x;
  for (int i = 0; i < 100000; ++i) y = y + 0.0;
  y.backward({}, true);
  EXPECT_EQ(values(x.grad()), (Values{1}));
  y = {};
  // And where the values of the chain hold it: each keeps its output.
  Tensor z = x;
  for (int i = 0; i < 100000; ++i) z = tanh(z);
  z = {};
  Tensor w = x;
  for (int i = 0; i < 100000; ++i) w = square(w);
  w = {};
}

TEST(Autograd, MixedDtypes) {
  Tensor x = Tensor::local(array_of({1, 2}, {2}, float32)).set_requires_grad(), y = leaf({3, 4});
  Tensor z = x * y;
  EXPECT_EQ(z.dtype(), float64);
  z.sum().backward();
  EXPECT_EQ(x.grad().dtype(), float32);
  EXPECT_EQ(values(x.grad()), (Values{3, 4}));
  EXPECT_EQ(values(y.grad()), (Values{1, 2}));
}

// --- Between local and global ---

TEST(AutogradGlobal, LeafGradientsLieAsTheLeaf) {
  comm::run_ranks(2, [](int) {
    Placement p = Placement::all("cpu");
    for (Sbp s : {broadcast(), split(0), split(1), partial_sum()})
      for (Sbp t : {broadcast(), split(0), split(1), partial_sum()}) {
        Tensor w = ones({4, 3}, {.placement = p, .sbp = NdSbp(s)}).set_requires_grad();
        Tensor x = full({5, 4}, 2.0, {.placement = p, .sbp = NdSbp(t)});
        matmul(x, w).sum().backward();
        EXPECT_EQ(w.grad().nd_sbp(), NdSbp(s));
        EXPECT_EQ(values(w.grad()), Values(12, 10.0)) << s.str() << " " << t.str();
      }
  });
}

TEST(AutogradGlobal, ToGlobalReturnsToTheSourcesLayout) {
  comm::run_ranks(2, [](int) {
    Placement p = Placement::all("cpu"), first("cpu", {0});
    for (Sbp s : {broadcast(), split(0), partial_sum()})
      for (Sbp t : {broadcast(), split(0), split(1), partial_sum()}) {
        Tensor x = full({3, 2}, 1.5, {.placement = p, .sbp = NdSbp(s)}).set_requires_grad();
        Tensor weights = arange(6.0).reshape({3, 2});
        Tensor y = to_global(x, p, NdSbp(t)) * to_global(weights, p, NdSbp(broadcast()));
        y.sum().backward();
        EXPECT_EQ(x.grad().nd_sbp(), NdSbp(s));
        EXPECT_EQ(values(x.grad()), (Values{0, 1, 2, 3, 4, 5}));
      }
    // grad_sbp changes the form, not the value.
    Tensor x = ones({3, 2}, {.placement = p, .sbp = NdSbp(split(0))}).set_requires_grad();
    Tensor h = x * 2.0;
    Tensor moved = to_global(h, p, NdSbp(broadcast()), {.grad_sbp = NdSbp(broadcast())});
    h.retain_grad();
    moved.sum().backward();
    EXPECT_EQ(h.grad().nd_sbp(), NdSbp(broadcast()));
    EXPECT_EQ(values(x.grad()), Values(6, 2.0));
    // To another placement and back.
    Tensor y = ones({3, 2}, {.placement = p, .sbp = NdSbp(split(0))}).set_requires_grad();
    to_global(y, first, NdSbp(broadcast())).sum().backward();
    EXPECT_EQ(y.grad().placement(), p);
    EXPECT_EQ(values(y.grad()), Values(6, 1.0));
    // Nothing to do: the same tensor.
    EXPECT_TRUE(to_global(y, p, NdSbp(split(0))).is_same(y));
  });
}

TEST(AutogradGlobal, LocalLeafOfAGlobalTensor) {
  comm::run_ranks(2, [](int rank) {
    Placement p = Placement::all("cpu");
    auto gradient = [&](Sbp s) {
      Tensor x = ones({2, 3}).set_requires_grad();
      Tensor y = to_global(x, p, NdSbp(s));
      Tensor w = to_global(arange(static_cast<double>(y.numel())).reshape(y.shape()), p, NdSbp(broadcast()));
      (y * w).sum().backward();
      return values_of(x.grad().array());
    };
    Values low{0, 1, 2, 3, 4, 5}, high{6, 7, 8, 9, 10, 11}, none(6, 0.0);
    EXPECT_EQ(gradient(split(0)), rank == 0 ? low : high);
    EXPECT_EQ(gradient(partial_sum()), low);
    EXPECT_EQ(gradient(broadcast()), rank == 0 ? low : none);
  });
}

TEST(AutogradGlobal, ToLocal) {
  comm::run_ranks(2, [](int rank) {
    Placement p = Placement::all("cpu");
    auto gradient = [&](Sbp s) {
      Tensor x = ones({2, 3}, {.placement = p, .sbp = NdSbp(s)}).set_requires_grad();
      Tensor part = to_local(x);
      (part * static_cast<double>(rank + 1)).sum().backward();
      EXPECT_EQ(x.grad().nd_sbp(), NdSbp(s));
      return values(x.grad());
    };
    EXPECT_EQ(gradient(broadcast()), Values(6, 3.0));
    EXPECT_EQ(gradient(split(0)), (Values{1, 1, 1, 2, 2, 2}));
  });
}

TEST(AutogradGlobal, ToLocalSharesMemoryUnlessCopied) {
  comm::run_ranks(2, [](int) {
    Tensor x = ones({4}, {.placement = Placement::all("cpu"), .sbp = NdSbp(split(0))});
    Tensor part = to_local(x), copied = to_local(x, {.copy = true});
    fill_(part, 3.0);
    EXPECT_EQ(values(x), Values(4, 3.0));
    EXPECT_EQ(values_of(copied.array()), Values(2, 1.0));
  });
}

TEST(AutogradGlobal, BackwardTwiceAndHooks) {
  comm::run_ranks(2, [](int) {
    Placement p = Placement::all("cpu");
    Tensor x = ones({3}, {.placement = p, .sbp = NdSbp(split(0))}).set_requires_grad();
    x.register_hook([](const Tensor& g) { return g * 2.0; });
    Tensor y = to_global(x, p, NdSbp(broadcast()));
    Tensor z = exp(y).sum();
    z.backward({}, true);
    z.backward();
    EXPECT_EQ(differs(values(x.grad()), Values(3, 4 * std::exp(1.0)), 1e-5), "");
    expect_error([&] { z.backward(); }, "retain_graph");
  });
}

TEST(AutogradGlobal, InPlaceVersions) {
  comm::run_ranks(2, [](int) {
    Tensor x = ones({3}, {.placement = Placement::all("cpu"), .sbp = NdSbp(split(0))}).set_requires_grad();
    Tensor y = exp(x);
    Tensor z = y.sum();
    {
      NoGradGuard guard;
      fill_(y, 0.0);
    }
    expect_error([&] { z.backward(); }, "changed in place");
  });
}

}  // namespace
}  // namespace holon::testing
