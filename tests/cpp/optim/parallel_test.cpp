// Training on any layout follows training on one rank, and clipping counts every element once.
#include <gtest/gtest.h>

#include <memory>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/nn/layers.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/optim/optimizer.h"
#include "values.h"

namespace holon::optim {
namespace {

using comm::run_ranks;
using holon::testing::largest_difference;
using holon::testing::values_of;
using List = std::vector<double>;
using sbp::broadcast;
using sbp::partial_sum;
using sbp::split;

Placement grid(int64_t rows, int64_t columns) {
  std::vector<int64_t> ranks;
  for (int64_t r = 0; r < rows * columns; ++r) ranks.push_back(r);
  return Placement("cpu", Dims{rows, columns}, ranks);
}

struct Training {
  List losses, norms;
  std::vector<List> parameters;
};

// A perceptron of 7 -> 13 -> 5, so that no size divides; hidden units over the second axis, rows of the batch over the
// first.
Training train(int64_t dp, int64_t tp, bool adam) {
  Training run;
  run_ranks(static_cast<int>(dp * tp), [&](int rank) {
    Placement p = grid(dp, tp);
    manual_seed(11);
    // In braces: in parentheses the compiler chooses which module is made, and draws, first.
    nn::Sequential model{nn::Linear(7, 13, {.placement = p, .sbp = {broadcast(), split(0)}}), nn::GELU(),
                         nn::Linear(13, 5, {.placement = p, .sbp = {broadcast(), split(1)}}),
                         nn::LayerNorm({5}, {.placement = p, .sbp = {broadcast(), broadcast()}})};
    std::unique_ptr<Optimizer> optimizer;
    if (adam)
      optimizer = std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = 0.02, .weight_decay = 0.05});
    else
      optimizer =
          std::make_unique<SGD>(model.parameters(), SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
    List losses, norms;
    const Tensor x = randn({9, 7}, {.placement = p, .sbp = {split(0), broadcast()}});
    const Tensor target = randint(0, 5, {9}, {.placement = p, .sbp = {split(0), broadcast()}});
    for (int step = 0; step < 20; ++step) {
      Tensor loss = cross_entropy(model(x), target);
      optimizer->zero_grad();
      loss.backward();
      norms.push_back(clip_grad_norm(model.parameters(), 0.7));
      optimizer->step();
      losses.push_back(loss.item().as_double());
    }
    std::vector<List> parameters;
    for (auto& t : model.parameters()) {
      EXPECT_EQ(t.grad().spec(), t.spec());
      parameters.push_back(values_of(t.full().array()));
    }
    if (rank == 0) run = {losses, norms, parameters};
  });
  return run;
}

class Layouts : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rules, Layouts, ::testing::Bool(), [](auto& info) { return info.param ? "AdamW" : "SGD"; });

TEST_P(Layouts, TrainAlike) {
  Training one = train(1, 1, GetParam());
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (auto [dp, tp] : {std::pair{2, 1}, {1, 2}, {2, 2}, {3, 1}}) {
    Training run = train(dp, tp, GetParam());
    for (size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i] / one.losses[i], 1, 1e-4) << dp << "x" << tp << " step " << i;
      EXPECT_NEAR(run.norms[i] / one.norms[i], 1, 1e-3) << dp << "x" << tp << " step " << i;
    }
    ASSERT_EQ(run.parameters.size(), one.parameters.size());
    for (size_t k = 0; k < one.parameters.size(); ++k)
      EXPECT_LT(largest_difference(run.parameters[k], one.parameters[k]), 2e-4)
          << dp << "x" << tp << " parameter " << k;
  }
}

// Every rank holds the same parameter under another sbp, with gradients of yet other ones.
TEST(Parallel, GradientsAreBoxedToTheirParameters) {
  run_ranks(2, [](int) {
    Placement p = Placement("cpu", {0, 1});
    List expected;
    for (Sbp own : {broadcast(), split(0), split(1), partial_sum()})
      for (Sbp given : {broadcast(), split(0), split(1), partial_sum()}) {
        manual_seed(3);
        std::vector<Tensor> params{randn({3, 5}, {.placement = p, .sbp = own})}, momenta(1);
        std::vector<Tensor> grads{randn({3, 5}, {.placement = p, .sbp = given})};
        for (int step = 0; step < 2; ++step)
          sgd_update(params, grads, momenta, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
        EXPECT_EQ(params[0].nd_sbp(), NdSbp(own));
        List found = values_of(params[0].full().array());
        if (expected.empty()) expected = found;
        EXPECT_LT(largest_difference(found, expected), 1e-6) << own.str() << " " << given.str();
      }
  });
}

TEST(Parallel, ClippingCountsEveryElementOnce) {
  run_ranks(4, [](int) {
    Placement all = grid(2, 2), last = Placement("cpu", {3}), line = Placement("cpu", {0, 1, 2});
    manual_seed(5);
    std::vector<Tensor> params;
    double expected = 0;
    auto add = [&](const Placement& where, const NdSbp& sbp, const NdSbp& grad_sbp) {
      Tensor p = zeros({5, 3}, {.placement = where, .sbp = sbp, .requires_grad = true});
      p.set_grad(randn({5, 3}, {.placement = where, .sbp = grad_sbp}));
      for (double x : values_of(p.grad().full().array())) expected += x * x;
      params.push_back(p);
    };
    add(all, {broadcast(), broadcast()}, {broadcast(), broadcast()});
    add(all, {split(0), broadcast()}, {split(0), broadcast()});
    add(all, {split(0), split(1)}, {split(0), split(1)});
    add(all, {split(0), split(0)}, {split(0), split(0)});
    add(all, {broadcast(), split(1)}, {partial_sum(), split(1)});
    add(line, {split(0)}, {split(0)});
    add(last, {broadcast()}, {broadcast()});
    EXPECT_NEAR(clip_grad_norm(params, 1) / std::sqrt(expected), 1, 1e-6);
    EXPECT_NEAR(clip_grad_norm(params, 1), 1, 1e-5);
  });
}

}  // namespace
}  // namespace holon::optim
