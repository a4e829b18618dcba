// Delayed scaling from C++: eager and in a graph. tests/python/test_delayed_scaling.py has its values.
#include "holon/optim/delayed_scaling.h"

#include <gtest/gtest.h>

#include <memory>

#include "error_of.h"
#include "holon/autograd/engine.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/autocast.h"
#include "holon/graph/nn_graph.h"
#include "holon/nn/linear.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/optim/optimizer.h"

namespace holon::optim {
namespace {

struct Net : nn::Layer<Net> {
  nn::Linear fc{4, 4, {.bias = false}};
  Net() { register_module("fc", fc); }
  Tensor forward(const Tensor& x) const { return fc(x); }
};

Tensor numbers(double value) { return full(Dims{2, 4}, Scalar(value)); }

TEST(DelayedScaling, FollowsTheStepsBefore) {
  comm::run_ranks(1, [](int) {
    Net net;
    auto recipe = std::make_shared<DelayedScaling>(net, DelayedScaling::Options{.amax_history_len = 2});
    EXPECT_EQ(recipe->scale("fc.weight", Float8Role::kInput), 1);
    for (double value : {3.0, 0.5, 0.25}) {
      Tensor y;
      {
        AutocastGuard region(float8_e4m3fn, true, true, 0, recipe);
        y = net(numbers(value));
      }
      sum(y).backward();
      recipe->update();
    }
    // 0.5 and 0.25 are in the history.
    EXPECT_EQ(recipe->scale("fc.weight", Float8Role::kInput), 512);
    EXPECT_EQ(recipe->scale("fc.weight", Float8Role::kGradient), 32768);
    DelayedScaling again(net, {.amax_history_len = 2});
    again.load_state_dict(recipe->state_dict());
    EXPECT_EQ(again.scale("fc.weight", Float8Role::kInput), 512);
    EXPECT_NE(value_error_of([&] { DelayedScaling(net, {.amax_history_len = 0}); }).find("amax_history_len is 0"),
              std::string::npos);
  });
}

struct Train : nn::Graph {
  Net net;
  SGD sgd{net.parameters(), {.lr = 0.1}};
  std::shared_ptr<DelayedScaling> recipe;
  Train() : recipe(std::make_shared<DelayedScaling>(net, DelayedScaling::Options{.amax_history_len = 2})) {
    register_module("net", net);
    add_optimizer(sgd);
    config.enable_amp(true, float8_e4m3fn, recipe);
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor loss = sum(net(in[0]));
    loss.backward();
    return {loss};
  }
};

TEST(DelayedScaling, AGraphUpdatesIt) {
  comm::run_ranks(1, [](int) {
    Train train;
    for (double value : {3.0, 0.5, 0.25}) train(numbers(value));
    EXPECT_EQ(train.recipe->scale("fc.weight", Float8Role::kInput), 512);
    EXPECT_EQ(train.recipe->scale("fc.weight", Float8Role::kGradient), 32768);
  });
}

}  // namespace
}  // namespace holon::optim
