#include "holon/graph/nn_graph.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/graph/graph_core.h"
#include "holon/nn/layers.h"
#include "holon/ops/activation.h"
#include "holon/ops/create.h"
#include "holon/ops/linalg.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"
#include "holon/optim/schedule.h"
#include "tests/cpp/error_of.h"

namespace holon::nn {
namespace {

struct Net : Layer<Net> {
  Linear up{6, 16}, down{16, 3};
  Net() {
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x) const { return down(relu(up(x))); }
};

Tensor loss_of(const Net& net, const Tensor& x, const Tensor& y) {
  Tensor d = net(x) - y;
  return (d * d).mean();
}

struct Train : Graph {
  Net net;
  optim::AdamW adam{net.parameters(), {.lr = 0.01, .weight_decay = 0.01}};
  Train() {
    register_module("net", net);
    add_optimizer(adam, [](int64_t step) { return optim::step_lr(step, 0.01, 4, 0.5); });
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor loss = loss_of(net, in[0], in[1]);
    loss.backward();
    return {loss};
  }
};

double largest_difference(const Tensor& a, const Tensor& b) {
  NoGradGuard no_grad;
  return amax(abs(a.full() - b.full())).item().as_double();
}

#define EXPECT_ERROR(expression, part)                        \
  do {                                                        \
    std::string text = error_of([&] { (void)(expression); }); \
    EXPECT_NE(text.find(part), std::string::npos) << text;    \
  } while (false)

TEST(NnGraph, TrainsAsEagerDoes) {
  Train graph;
  Net net;
  net.load_state_dict(graph.net.state_dict());
  optim::AdamW adam(net.parameters(), {.lr = 0.01, .weight_decay = 0.01});
  for (int step = 0; step < 10; ++step) {
    // Two shapes take turns: two signatures, one state.
    Tensor x = randn({step % 3 == 2 ? 5 : 8, 6}), y = randn({x.shape()[0], 3});
    adam.set_lr(optim::step_lr(step, 0.01, 4, 0.5));
    adam.zero_grad();
    Tensor loss = loss_of(net, x, y);
    loss.backward();
    adam.step();
    EXPECT_NEAR(graph(x, y)[0].item().as_double(), loss.item().as_double(), 1e-5);
  }
  EXPECT_EQ(graph.n_signatures(), 2u);
  auto want = net.named_parameters(), found = graph.net.named_parameters();
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_LT(largest_difference(want[i].second, found[i].second), 1e-5) << want[i].first;
  EXPECT_FALSE(graph.net.up.weight.grad().defined());
  // What the graph did is the optimizer's.
  auto a = adam.state_dict(), b = graph.adam.state_dict();
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i)
    EXPECT_LT(largest_difference(a.tensors[i].second, b.tensors[i].second), 1e-5);
  EXPECT_NE(b.numbers.end(),
            std::find(b.numbers.begin(), b.numbers.end(), std::pair<std::string, double>("0.step", 10)));
}

TEST(NnGraph, GoesOnFromAState) {
  Train first, second;
  std::vector<std::pair<Tensor, Tensor>> data;
  for (int i = 0; i < 6; ++i) data.emplace_back(randn({4, 6}), randn({4, 3}));
  for (int i = 0; i < 3; ++i) first(data[static_cast<size_t>(i)].first, data[static_cast<size_t>(i)].second);
  GraphState state = first.state_dict();
  EXPECT_EQ(state.steps, std::vector<int64_t>{3});
  second(data[0].first, data[0].second);
  second.load_state_dict(state);
  for (int i = 3; i < 6; ++i) {
    auto& [x, y] = data[static_cast<size_t>(i)];
    EXPECT_NEAR(first(x, y)[0].item().as_double(), second(x, y)[0].item().as_double(), 1e-6);
  }
  state.optimizers.clear();
  EXPECT_ERROR(second.load_state_dict(state), "it has 0 optimizers");
}

TEST(NnGraph, ModulesAndLinesAreNamed) {
  Train graph;
  Tensor x = randn({4, 6}), y = randn({4, 3});
  graph.compile(std::vector<Tensor>{x, y});
  EXPECT_EQ(graph.n_signatures(), 1u);
  EXPECT_NE(graph.captured().find("net.up"), std::string::npos);
  EXPECT_NE(graph.plan().find("net.down"), std::string::npos);
  for (const char* part : {"Train(", "(net): 163 parameters", "float32 [4, 6]", "nodes captured"})
    EXPECT_NE(graph.str().find(part), std::string::npos) << graph.str();
  EXPECT_ERROR(graph(randn({4, 5}), y), "in net.up, while");
  EXPECT_ERROR(graph.step(7), "signature 7 of 1");
}

TEST(NnGraph, TheTrainingModeAndTheConfigBelongToTheSignature) {
  struct Noisy : Graph {
    Dropout drop{0.5};
    Noisy() { register_module("drop", drop); }
    std::vector<Tensor> build(TensorList in) override { return {drop(in[0])}; }
  } graph;
  Tensor x = ones({64});
  EXPECT_LT(graph(x)[0].sum().item().as_double(), 127);
  graph.drop.eval();
  EXPECT_EQ(graph(x)[0].sum().item().as_double(), 64);
  graph.drop.train();
  EXPECT_NE(graph(x)[0].sum().item().as_double(), 64);
  EXPECT_EQ(graph.n_signatures(), 2u);
  graph.config.verify();
  graph(x);
  EXPECT_EQ(graph.n_signatures(), 3u);
  EXPECT_NE(graph.config.str().find("verified"), std::string::npos);
}

TEST(NnGraph, RefusesWhatCannotBe) {
  struct Value : Graph {
    std::vector<Tensor> build(TensorList in) override { return {in[0].sum().item().as_double() > 0 ? in[0] : -in[0]}; }
  } value;
  EXPECT_ERROR(value(ones({2})), "has no value yet");
  struct Nested : Graph {
    Value inner;
    std::vector<Tensor> build(TensorList in) override { return {inner(in[0])[0]}; }
  } nested;
  EXPECT_ERROR(nested(ones({2})), "inside another one's build()");
  Train first;
  first(randn({4, 6}), randn({4, 3}));
  struct Second : Graph {
    explicit Second(Train& t) {
      register_module("net", t.net);
      add_optimizer(t.adam);
      EXPECT_ERROR(register_module("net", t.net), "already has a module 'net'");
      EXPECT_ERROR(set_stage(Linear(1, 1), 0), "does not belong to this graph");
    }
    std::vector<Tensor> build(TensorList in) override { return {in[0]}; }
  } second(first);
  EXPECT_ERROR(second(ones({2})), "is updated by another graph");
  std::vector<std::pair<std::string, int>> stages{{"a", 0}, {"b", 2}};
  EXPECT_ERROR(check_stages("G", stages), "G has no module in stage 1, but b in stage 2");
  EXPECT_EQ(ones({2}).sum().item().as_double(), 2);
}

TEST(NnGraph, StagesOnTwoRanks) {
  comm::run_ranks(2, [](int) {
    struct Staged : Graph {
      Placement p0{"cpu", {0}}, p1{"cpu", {1}};
      Net net;
      optim::SGD sgd{net.parameters(), {.lr = 0.1}};
      Staged() {
        net.to_global(Placement("cpu", {0, 1}), sbp::broadcast());
        net.up.to_global(p0, sbp::broadcast());
        net.down.to_global(p1, sbp::broadcast());
        register_module("net", net);
        set_stage(net.up, 0, p0);
        set_stage(net.down, 1, p1);
        add_optimizer(sgd);
        config.set_gradient_accumulation_steps(2);
      }
      std::vector<Tensor> build(TensorList in) override {
        Tensor loss = loss_of(net, in[0], in[1]);
        loss.backward();
        return {loss};
      }
    } graph;
    Net net;
    net.to_global(Placement("cpu", {0, 1}), sbp::broadcast());
    net.load_state_dict(graph.net.state_dict());
    optim::SGD sgd(net.parameters(), {.lr = 0.1});
    for (int step = 0; step < 4; ++step) {
      Tensor x = randn({8, 6}, {.placement = graph.p0, .sbp = sbp::broadcast()}),
             y = randn({8, 3}, {.placement = graph.p1, .sbp = sbp::broadcast()});
      Placement both("cpu", {0, 1});
      sgd.zero_grad();
      Tensor loss = loss_of(net, x.to_global(both, sbp::broadcast()), y.to_global(both, sbp::broadcast()));
      loss.backward();
      sgd.step();
      EXPECT_NEAR(graph(x, y)[0].full().mean().item().as_double(), loss.item().as_double(), 1e-5);
    }
    EXPECT_LT(largest_difference(net.up.weight, graph.net.up.weight), 1e-5);
    EXPECT_LT(largest_difference(net.down.bias, graph.net.down.bias), 1e-5);
  });
}

// Its name is not one of nn::Graph's.
struct Block : Layer<Block> {
  Linear layer{6, 3};
  Block() { register_module("layer", layer); }
  Tensor forward(const Tensor& x) const { return layer(x); }
};
struct State : Block {};
struct Entry : Block {};
struct Group : Block {};
struct Impl : Block {};
struct Core : Block {};
Tensor capture(const Tensor& x) { return x * Scalar(2.0); }
Tensor call(const Tensor& x) { return capture(x); }
Tensor run(const Tensor& x) { return call(x); }
Tensor find(const Tensor& x) { return run(x); }
std::string name() { return "mine"; }

TEST(NnGraph, NamesOfTheProgramsStayItsOwn) {
  struct Mine : Graph {
    Block block;
    State state;
    Entry entry;
    Group group;
    Impl impl;
    Core core;
    Mine() { register_module("block", block); }
    std::vector<Tensor> build(TensorList in) override {
      EXPECT_EQ(name(), "mine");
      return {find(block(in[0]))};
    }
  } graph;
  const Tensor x = randn({2, 6});
  EXPECT_LT(largest_difference(graph(x)[0], graph.block(x) * Scalar(2.0)), 1e-6);
}

TEST(NnGraph, WhatIsReplacedIsCapturedAgain) {
  struct Apply : Graph {
    Net net;
    Sequential list{Linear(3, 3)};
    Apply() {
      register_module("net", net);
      register_module("list", list);
    }
    std::vector<Tensor> build(TensorList in) override { return {list(net(in[0]))}; }
  } graph;
  const Tensor x = randn({2, 6});
  auto check = [&] { EXPECT_LT(largest_difference(graph(x)[0], graph.list(graph.net(x))), 1e-6); };
  check();
  graph.net.up = Linear(6, 16);
  check();
  graph.net.down.weight = ones({3, 16});
  check();
  graph.list.push_back(Linear(3, 3));
  check();
  const HookHandle hook =
      graph.net.register_forward_hook([](const Tensor&, const Tensor& y) { return y * Scalar(3.0); });
  check();
  hook.remove();
  check();
  graph.replace_module("net", Net());
  check();
  EXPECT_EQ(graph.state_dict().modules[0].second.impl(), graph.net.up.weight.impl());
  EXPECT_EQ(graph.n_signatures(), 1u);
  EXPECT_ERROR(graph.net = Net(), "registered as the module 'net'");
  EXPECT_ERROR(graph.replace_module("none", Net()), "no submodule 'none'");
  check();
}

}  // namespace
}  // namespace holon::nn
