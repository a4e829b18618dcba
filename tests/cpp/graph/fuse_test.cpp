// Fusing passes: what they find, what they leave alone, and that results stay what they were.
#include "holon/graph/passes/fuse.h"

#include <algorithm>
#include <functional>

#include "tests/cpp/graph/small_graphs.h"

#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::graph {
namespace {

using namespace testing;

struct BlockOptions {
  std::string activation = "gelu";
  bool bias = true, train = true;
  int micro_batches = 1;
};

// y = x + down(activation(up(x))) twice, with weights [out, in] as nn.Linear has them, and its training step.
Captured block(const Layout& l, const BlockOptions& o = {}) {
  Captured c;
  auto b = sbp::broadcast();
  // Tensor-parallel: up by its outputs, down by its inputs.
  NdSbp by_outputs = l.up, by_inputs = l.down, bias_sbp = l.up;
  for (int a = 0; a < l.up.size(); ++a) {
    by_outputs = by_outputs.with(a, l.up[a].is_split() ? sbp::split(0) : b);
    by_inputs = by_inputs.with(a, l.down[a].is_split() ? sbp::split(1) : b);
    bias_sbp = bias_sbp.with(a, l.up[a].is_split() ? sbp::split(0) : b);
  }
  std::vector<Tensor> up, up_bias, down, down_bias;
  for (int i = 0; i < 2; ++i) {
    up.push_back(parameter(l, {10, 6}, by_outputs, 10 * i));
    up_bias.push_back(parameter(l, {10}, bias_sbp, 10 * i + 1));
    down.push_back(parameter(l, {6, 10}, by_inputs, 10 * i + 2));
    down_bias.push_back(parameter(l, {6}, l.whole, 10 * i + 3));
    for (auto& list : {up, down}) c.parameters.push_back(list.back());
    if (o.bias)
      for (auto& list : {up_bias, down_bias}) c.parameters.push_back(list.back());
  }
  c.inputs = {random(l, {8, 6}, l.data, 1000), random(l, {8, 6}, l.data, 1001)};
  Capture capture;
  capture.set_micro_batches(o.micro_batches);
  Tensor x = capture.input_like(c.inputs[0]), target = capture.input_like(c.inputs[1]);
  for (size_t i = 0; i < 2; ++i) {
    Tensor h = linear(x, up[i], o.bias ? up_bias[i] : Tensor());
    h = o.activation == "relu" ? relu(h) : gelu(h, {.approximate = o.activation == "gelu" ? "none" : "tanh"});
    x = x + linear(h, down[i], o.bias ? down_bias[i] : Tensor());
  }
  Tensor d = x - target, loss = mean(d * d);
  if (o.train) return trained(std::move(c), capture, loss);
  c.g = capture.finish(std::vector<Tensor>{loss});
  return c;
}

TEST(FuseEpilogue, ATrainingStep) {
  for (const char* activation : {"relu", "gelu", "tanh"})
    for (bool bias : {true, false}) {
      Captured after = expect_unchanged(
          [&] {
            return block(local(), {activation, bias});
          },
          only({"fuse_epilogue"}), 2e-6);
      const bool relu = activation == std::string("relu");
      EXPECT_EQ(count_op(after.g, "linear_gelu"), relu ? 0 : 2);
      EXPECT_EQ(count_op(after.g, "linear_then"), relu ? 4 : 2) << "activations, and sums with x";
      EXPECT_EQ(count_op(after.g, "linear"), 0);
      for (const char* gone : {"relu", "gelu", "relu_backward", "gelu_backward", "gelu_tanh_backward"})
        EXPECT_EQ(count_op(after.g, gone), 0) << gone;
      EXPECT_EQ(count_op(after.g, "add"), 1) << "of the loss, which multiplies d by itself";
      EXPECT_EQ(count_op(after.g, "matmul_then"), 3)
          << "two times the slope, and the gradient that passes by the second block";
      EXPECT_EQ(count_op(after.g, "linear_gradients"), bias ? 4 : 0);
      EXPECT_EQ(count_op(after.g, "linear_weight_grad"), bias ? 0 : 4);
    }
}

TEST(FuseEpilogue, WithoutBackward) {
  Captured after = expect_unchanged([&] { return block(local(), {.activation = "tanh", .train = false}); },
                                    only({"fuse_epilogue"}), 2e-6);
  EXPECT_EQ(count_op(after.g, "linear_gelu"), 0) << "no slope is wanted";
  EXPECT_EQ(count_op(after.g, "linear_then"), 4);
}

TEST(FuseEpilogue, OnSeveralRanks) {
  auto same = [](const Layout& l, int micro_batches) {
    for (const char* activation : {"relu", "gelu"}) {
      CompileOptions all;
      all.verify = true;
      all.bucket_bytes = 1 << 20;
      auto make = [&] { return block(l, {.activation = activation, .micro_batches = micro_batches}); };
      Captured before = make(), after = make();
      if (micro_batches > 1) run_passes(before.g, only({"accumulate"}));  // else it has no update
      run_passes(after.g, all);
      expect_equal(run(before), run(after), 2e-6);
      EXPECT_EQ(count_op(after.g, "gelu") + count_op(after.g, "relu"), 0);
      // Where dy is redistributed for the product only, the sum reads another value.
      EXPECT_GE(count_op(after.g, "linear_gradients"), 2) << str(after.g);
    }
  };
  for (int m : {1, 2}) {
    same(local(), m);
    comm::run_ranks(2, [&](int) {
      same(data_parallel(), m);
      same(tensor_parallel(), m);
    });
    comm::run_ranks(4, [&](int) { same(grid(), m); });
  }
}

Captured values(const std::function<std::vector<Tensor>(Capture&, const Tensor&, const Tensor&, const Tensor&)>& f,
                DType dtype = float32) {
  Captured c;
  for (int i = 0; i < 2; ++i) c.inputs.push_back(random(local(), {6, 6}, {}, i).to(dtype));
  c.parameters = {random(local(), {6, 6}, {}, 2).to(dtype)};
  Capture capture;
  Tensor x = capture.input_like(c.inputs[0]), y = capture.input_like(c.inputs[1]);
  c.g = capture.finish(f(capture, x, y, c.parameters[0]));
  return c;
}

TEST(FuseEpilogue, LeavesWhatOthersRead) {
  auto none = only({"fuse_epilogue"});
  auto unchanged =
      [&](const char* what,
          const std::function<std::vector<Tensor>(Capture&, const Tensor&, const Tensor&, const Tensor&)>& f,
          DType dtype = float32) {
        Captured after = expect_unchanged([&] { return values(f, dtype); }, none);
        for (const char* op : {"linear_then", "linear_gelu", "matmul_then", "matmul_scaled"})
          EXPECT_EQ(count_op(after.g, op), 0) << what << ": " << op;
      };
  unchanged("an output", [](Capture&, const Tensor& x, const Tensor& y, const Tensor&) {
    Tensor h = linear(x, y);
    return std::vector<Tensor>{h, relu(h)};
  });
  unchanged("another reader", [](Capture&, const Tensor& x, const Tensor& y, const Tensor&) {
    Tensor h = linear(x, y);
    return std::vector<Tensor>{gelu(h) * tanh(h)};
  });
  unchanged("twice itself", [](Capture&, const Tensor& x, const Tensor& y, const Tensor&) {
    Tensor h = matmul(x, y);
    return std::vector<Tensor>{h + h};
  });
  unchanged(
      "another dtype",
      [](Capture&, const Tensor& x, const Tensor& y, const Tensor&) {
        return std::vector<Tensor>{relu(linear(x, y)), matmul(x, y) + x};
      },
      float64);
  unchanged("a broadcast", [](Capture&, const Tensor& x, const Tensor& y, const Tensor&) {
    return std::vector<Tensor>{matmul(x, y) + sum(x, Dims{0})};
  });
  unchanged("a scaled value with another reader", [](Capture&, const Tensor& x, const Tensor& y, const Tensor&) {
    Tensor h = x * Scalar(0.5);
    return std::vector<Tensor>{matmul(h, y), tanh(h)};
  });
}

// What reads an external is not moved past a write to it.
TEST(Fuse, NeverPastAWrite) {
  Captured after = expect_unchanged(
      [&] {
        return values([](Capture&, const Tensor& x, const Tensor& y, const Tensor& state) {
          Tensor h = matmul(x, state), scaled = state * x;
          add_(state, y);
          Tensor later = state * Scalar(2.0);
          return std::vector<Tensor>{h + later, scaled + later};
        });
      },
      only({"fuse_epilogue", "fuse_elementwise"}), 2e-6);
  auto at = [&](const auto& wanted) {
    return std::find_if(after.g.nodes.begin(), after.g.nodes.end(), wanted) - after.g.nodes.begin();
  };
  const auto write = at([](const Node& n) { return n.kind == NodeKind::kAssign; });
  ASSERT_LT(write, static_cast<int64_t>(after.g.nodes.size()));
  for (size_t i = static_cast<size_t>(write); i < after.g.nodes.size(); ++i)
    for (ValueId v : after.g.nodes[i].in) EXPECT_FALSE(after.g.value(v).kind == ValueKind::kExternal) << str(after.g);
}

TEST(FuseEpilogue, NumbersBecomeTheProducts) {
  Captured after = expect_unchanged(
      [&] {
        return values([](Capture&, const Tensor& x, const Tensor& y, const Tensor& w) {
          Tensor h = x * Scalar(0.5);
          return std::vector<Tensor>{matmul(h, y), matmul(w, h), matmul(y, w) * Scalar(-3.0)};
        });
      },
      only({"fuse_epilogue"}), 2e-6);
  EXPECT_EQ(count_op(after.g, "matmul_scaled"), 3);
  EXPECT_EQ(count_op(after.g, "mul_scalar"), 0);
}

// Copies for backward are fused among themselves, as what they are copies of is.
TEST(Fuse, WhatIsComputedAgain) {
  CompileOptions o = only({"stages", "recompute", "fuse_elementwise", "dead_code_again"});
  o.recompute = {"model.block0", "model.block1"};
  Captured after = expect_unchanged([] { return mlp(local()); }, o);
  auto chains = [&](Section s, bool pinned) {
    return count(after.g,
                 [&](const Node& n) { return n.kind == NodeKind::kFused && n.section == s && n.pinned == pinned; });
  };
  EXPECT_EQ(chains(Section::kForward, false), 3) << str(after.g);
  EXPECT_EQ(chains(Section::kBackward, true), 2) << str(after.g);
  for (auto& n : after.g.nodes)
    if (n.kind == NodeKind::kFused && n.pinned) {
      EXPECT_EQ(after.g.bodies[static_cast<size_t>(n.target)].parts.size(), 2u) << str(after.g, n);
    }
}

TEST(FuseElementwise, ChainsWithSeveralResults) {
  Captured after = expect_unchanged(
      [&] {
        return values([](Capture&, const Tensor& x, const Tensor& y, const Tensor& w) {
          Tensor a = exp(x) * y, b = tanh(a) + sum(w, Dims{0});  // a leaves the chain, and a row is broadcast
          return std::vector<Tensor>{a, matmul(b, w), softmax(relu(x - y))};
        });
      },
      only({"fuse_elementwise"}));
  EXPECT_EQ(count_kind(after.g, NodeKind::kFused), 2);
  for (const char* gone : {"exp", "mul", "tanh", "add", "relu", "sub"}) EXPECT_EQ(count_op(after.g, gone), 0) << gone;
  for (auto& n : after.g.nodes)
    if (n.kind == NodeKind::kFused && n.out.size() == 2) {
      EXPECT_EQ(after.g.bodies[static_cast<size_t>(n.target)].parts.size(), 4u);
    }
}

TEST(FuseElementwise, NeverPastAReader) {
  // softmax reads a before the chain's end: a stays where it is.
  Captured after = expect_unchanged(
      [&] {
        return values([](Capture&, const Tensor& x, const Tensor& y, const Tensor& w) {
          Tensor a = exp(x), b = softmax(a);
          return std::vector<Tensor>{a * b};
        });
      },
      only({"fuse_elementwise"}));
  EXPECT_EQ(count_kind(after.g, NodeKind::kFused), 0);
  // Draws have numbers by their place in the whole tensor.
  after = expect_unchanged(
      [&] {
        return values([](Capture&, const Tensor& x, const Tensor& y, const Tensor&) {
          return std::vector<Tensor>{relu(dropout(exp(x) + y))};
        });
      },
      only({"fuse_elementwise"}));
  EXPECT_EQ(count_op(after.g, "dropout_mask"), 1);
  EXPECT_EQ(count_kind(after.g, NodeKind::kFused), 1);
}

// Attention of [rows, heads, length, size], and its gradients: scores, weights and their gradients stay inside.
Captured attention(const Layout& l, bool masked, bool train) {
  Captured c;
  auto b = sbp::broadcast();
  NdSbp by_heads = l.whole;
  for (int a = 0; a < by_heads.size(); ++a)
    by_heads = by_heads.with(a, l.up[a].is_split() ? sbp::split(1) : l.data[a].is_split() ? sbp::split(0) : b);
  for (int i = 0; i < 3; ++i) c.parameters.push_back(parameter(l, {4, 2, 5, 3}, by_heads, i));
  c.inputs = {random(l, {5, 5}, l.whole, 1000)};
  Capture capture;
  Tensor mask = capture.input_like(c.inputs[0]);
  Tensor q = c.parameters[0], k = c.parameters[1], v = c.parameters[2];
  Tensor scores = matmul(q, transpose(k, -2, -1)) * Scalar(0.5);
  if (masked) scores = scores + mask;
  Tensor y = matmul(softmax(scores, -1), v);
  Tensor loss = mean(square(transpose(y, 1, 2)));
  if (train) return trained(std::move(c), capture, loss, 0.5);
  c.g = capture.finish(std::vector<Tensor>{loss});
  return c;
}

TEST(FuseMatrices, Attention) {
  for (bool masked : {false, true}) {
    Captured after = expect_unchanged([&] { return attention(local(), masked, false); }, only({"fuse_matrices"}));
    EXPECT_EQ(count_kind(after.g, NodeKind::kFused), 1);
    EXPECT_EQ(count_op(after.g, "matmul") + count_op(after.g, "softmax"), 0);
    for (auto& n : after.g.nodes) {
      if (n.kind != NodeKind::kFused) continue;
      EXPECT_EQ(n.out.size(), 1u) << "weights stay inside";
    }
    after = expect_unchanged([&] { return attention(local(), masked, true); }, only({"fuse_matrices"}));
    EXPECT_EQ(count_kind(after.g, NodeKind::kFused), 2) << str(after.g);
    for (const char* gone : {"matmul", "softmax", "softmax_backward"})
      EXPECT_EQ(count_op(after.g, gone), 0) << gone << "\n" << str(after.g);
    for (auto& n : after.g.nodes) {
      if (n.kind != NodeKind::kFused || n.section != Section::kBackward) continue;
      EXPECT_EQ(n.out.size(), 3u) << "gradients of q, k and v";
    }
  }
}

TEST(FuseMatrices, OnSeveralRanks) {
  auto same = [](const Layout& l) {
    CompileOptions all;
    all.verify = true;
    Captured after = expect_unchanged([&] { return attention(l, true, true); }, all, 1e-6);
    EXPECT_EQ(count_op(after.g, "softmax"), 0);
  };
  same(local());
  comm::run_ranks(2, [&](int) {
    same(data_parallel());
    same(tensor_parallel());
  });
  comm::run_ranks(4, [&](int) { same(grid()); });
}

TEST(FuseMatrices, LeavesProductsWithOneMatrix) {
  Captured after = expect_unchanged(
      [] {
        Captured c;
        c.inputs = {random(local(), {3, 4, 5}, {}, 0), random(local(), {5, 4}, {}, 1)};
        Capture capture;
        Tensor x = capture.input_like(c.inputs[0]), w = capture.input_like(c.inputs[1]);
        c.g = capture.finish(std::vector<Tensor>{softmax(matmul(x, w), -1), softmax(matmul(tanh(x), w), 2)});
        return c;
      },
      only({"fuse_matrices"}));
  EXPECT_EQ(count_kind(after.g, NodeKind::kFused), 0);
}

}  // namespace
}  // namespace holon::graph
