// A gradient that a node's backward redistributes moves once for all that is made of it.
#include <gtest/gtest.h>

#include <functional>

#include "holon/autograd/engine.h"
#include "holon/autograd/function.h"
#include "holon/boxing/events.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/indexing.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/ops/unary.h"

namespace holon::testing {
namespace {

using sbp::broadcast;
using sbp::partial_sum;
using sbp::split;

Placement two() { return Placement("cpu", {0, 1}); }
// A first axis of one rank: what the layouts say of it moves nothing.
Placement grid() { return Placement("cpu", Dims{1, 2}, {0, 1}); }

Tensor value(const Dims& shape, const Placement& placement, const NdSbp& sbp, int64_t draw) {
  NoGradGuard guard;
  RandnOptions o{.placement = placement, .sbp = sbp};
  o.seed = 5;
  o.counter = draw;
  return randn(shape, o).detach();
}
Tensor leaf(const Dims& shape, const Placement& placement, const NdSbp& sbp, int64_t draw) {
  return value(shape, placement, sbp, draw).set_requires_grad();
}

double difference(const Tensor& a, const Tensor& b) {
  NoGradGuard guard;
  return amax(abs(a.full() - b.full())).item().as_double();
}

struct Linear {
  Tensor x, weight, bias;
  Linear(const Placement& p, const NdSbp& of_x, const NdSbp& of_weight, const NdSbp& of_bias)
      : x(leaf({8, 4, 16}, p, of_x, 1)), weight(leaf({12, 16}, p, of_weight, 2)), bias(leaf({12}, p, of_bias, 3)) {}
  Tensor operator()() const { return linear(x * Scalar(1.0), weight, bias); }
};

// What backward moves before the leaves add up their gradients, and those against those of whole tensors.
int64_t moves(const Linear& net, const Placement& p, const NdSbp& of_gradient) {
  Tensor y = net();
  boxing::reset_boxing_counters();
  y.backward(value({8, 4, 12}, p, of_gradient, 4));
  const int64_t made = boxing::boxing_counters().moves;
  const NdSbp whole(std::vector<Sbp>(to_size(of_gradient.size()), broadcast()));
  Linear reference(p, whole, whole, whole);
  reference().backward(value({8, 4, 12}, p, whole, 4));
  EXPECT_LT(difference(net.x.grad(), reference.x.grad()), 1e-5);
  EXPECT_LT(difference(net.weight.grad(), reference.weight.grad()), 1e-5);
  EXPECT_LT(difference(net.bias.grad(), reference.bias.grad()), 1e-5);
  return made;
}

TEST(GradientForms, ALinearLayerGathersTheGradientOfItsResultOnce) {
  comm::run_ranks(2, [](int) {
    EXPECT_EQ(moves({two(), split(2), split(1), broadcast()}, two(), split(0)), 1);
    EXPECT_EQ(moves({grid(), NdSbp{split(0), split(2)}, NdSbp{broadcast(), split(1)}, NdSbp{broadcast(), broadcast()}},
                    grid(), NdSbp{broadcast(), split(0)}),
              1);
  });
}

TEST(GradientForms, BitsAreThoseOfAGradientThatIsConvertedFirst) {
  comm::run_ranks(2, [](int) {
    Linear moved(two(), split(2), split(1), broadcast()), converted(two(), split(2), split(1), broadcast());
    moved().backward(value({8, 4, 12}, two(), split(0), 4));
    converted().backward(to_global(value({8, 4, 12}, two(), split(0), 4), two(), broadcast()));
    for (auto [a, b] :
         {std::pair{moved.x, converted.x}, {moved.weight, converted.weight}, {moved.bias, converted.bias}})
      EXPECT_EQ(difference(a.grad(), b.grad()), 0);
  });
}

TEST(GradientForms, NothingMovesThatHasNotTo) {
  comm::run_ranks(2, [](int) {
    EXPECT_EQ(moves({two(), split(0), broadcast(), broadcast()}, two(), split(0)), 0);
    EXPECT_EQ(moves({two(), broadcast(), split(0), split(0)}, two(), split(2)), 0);
  });
}

// The layouts that an op's backward sees of its gradient, after a product with the table.
NdSbp after_product(const NdSbp& of_gradient, const NdSbp& of_table) {
  const Tensor table = value({8, 6}, two(), of_table, 2);
  NdSbp seen;
  autograd::FunctionCall f;
  f.name = "after_product";
  f.forward = [](TensorList x) { return std::vector<Tensor>{x[0] * Scalar(2.0)}; };
  f.backward = [&](TensorList gradients) {
    const Tensor product = gradients[0] * table;
    seen = exp(gradients[0]).nd_sbp();
    return std::vector<Tensor>{product};
  };
  autograd::apply_function(f, {leaf({8, 6}, two(), broadcast(), 1)})[0].backward(value({8, 6}, two(), of_gradient, 3));
  return seen;
}

TEST(GradientForms, WhatIsOnlyCutStaysWholeForTheNextOp) {
  comm::run_ranks(2, [](int) {
    EXPECT_EQ(after_product(broadcast(), split(0)), NdSbp(broadcast()));
    EXPECT_EQ(after_product(split(1), split(0)), NdSbp(split(0)));
    EXPECT_EQ(after_product(split(0), split(0)), NdSbp(split(0)));
  });
}

TEST(GradientForms, WhatIsChangedInPlaceIsMovedAgain) {
  comm::run_ranks(2, [](int) {
    const Tensor table = value({8, 6}, two(), split(0), 2), gradient = value({8, 6}, two(), split(1), 3);
    auto after = [&](const std::function<void(Tensor)>& change) {
      Tensor made;
      autograd::FunctionCall f;
      f.name = "changes_its_gradient";
      f.forward = [](TensorList x) { return std::vector<Tensor>{x[0] * Scalar(2.0)}; };
      f.backward = [&](TensorList gradients) {
        const Tensor product = gradients[0] * table;
        change(gradients[0]);
        made = gradients[0] * table;
        return std::vector<Tensor>{product};
      };
      const Tensor mine = to_global(gradient, two(), broadcast());
      autograd::apply_function(f, {leaf({8, 6}, two(), broadcast(), 1)})[0].backward(to_global(mine, two(), split(1)));
      return made;
    };
    const Tensor expected = gradient * table * Scalar(3.0);
    EXPECT_LT(difference(after([](Tensor g) { mul_(g, Scalar(3.0)); }), expected), 1e-5);
    EXPECT_LT(difference(after([](Tensor g) { mul_(g.to_local(), Scalar(3.0)); }), expected), 1e-5);
    EXPECT_LT(difference(after([](Tensor g) { copy_(g, g * Scalar(3.0)); }), expected), 1e-5);
    EXPECT_LT(difference(after([](Tensor g) { index_put_(g, {Slice()}, g * Scalar(3.0)); }), expected), 1e-5);
  });
}

TEST(GradientForms, SecondDerivativesGoThroughTheMove) {
  comm::run_ranks(2, [](int) {
    auto second = [](const NdSbp& of_x, const NdSbp& of_weight, const NdSbp& of_gradient) {
      Tensor x = leaf({8, 16}, two(), of_x, 1), weight = leaf({12, 16}, two(), of_weight, 2);
      Tensor gradient = leaf({8, 12}, two(), of_gradient, 4);
      const std::vector<Tensor> first =
          autograd::grad({linear(x * Scalar(1.0), weight)}, {x, weight}, {gradient}, true, true, false);
      (sum(first[0] * first[0]) + sum(first[1] * first[1])).backward();
      return std::pair{weight.grad(), gradient.grad()};
    };
    auto [weight, gradient] = second(split(1), split(1), split(0));
    auto [whole_weight, whole_gradient] = second(broadcast(), broadcast(), broadcast());
    EXPECT_LT(difference(weight, whole_weight), 2e-4);
    EXPECT_LT(difference(gradient, whole_gradient), 2e-4);
    EXPECT_GT(amax(abs(gradient.full())).item().as_double(), 1);
  });
}

}  // namespace
}  // namespace holon::testing
