// Small models captured as graphs, and the comparison of what they compute before and after passes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/ir/interpret.h"
#include "holon/graph/passes/pass.h"
#include "holon/kernels/copy.h"
#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/ops/unary.h"

namespace holon::graph::testing {

// Where the parts of a model lie. spec: nullptr for local tensors.
struct Layout {
  Placement placement{};
  NdSbp data{}, up{}, down{}, whole{};  // of inputs, of a layer's first and second weight, of the rest
  bool is_local() const { return !placement; }
};
inline Layout local() { return {}; }
inline Layout data_parallel(std::vector<int64_t> ranks = {0, 1}) {
  return {Placement("cpu", std::move(ranks)), sbp::split(0), sbp::broadcast(), sbp::broadcast(), sbp::broadcast()};
}
inline Layout tensor_parallel(std::vector<int64_t> ranks = {0, 1}) {
  return {Placement("cpu", std::move(ranks)), sbp::broadcast(), sbp::split(1), sbp::split(0), sbp::broadcast()};
}
inline Layout grid() {  // data x tensor
  auto b = sbp::broadcast();
  return {
      Placement::nested("cpu", {{0, 1}, {2, 3}}), {sbp::split(0), b}, {b, sbp::split(1)}, {b, sbp::split(0)}, {b, b}};
}

// The same values whatever the layout.
inline Tensor random(const Layout& l, const Dims& shape, const NdSbp& sbp, int64_t draw, double scale = 1) {
  RandnOptions o;
  if (!l.is_local()) {
    o.placement = l.placement;
    o.sbp = sbp;
  }
  o.seed = 7;
  o.counter = draw;
  NoGradGuard guard;
  return randn(shape, o) * Scalar(scale);
}
inline Tensor parameter(const Layout& l, const Dims& shape, const NdSbp& sbp, int64_t draw, double scale = 0.5) {
  Tensor p = random(l, shape, sbp, draw, scale).detach();
  p.set_requires_grad();
  return p;
}

struct Captured {
  Graph g;
  std::vector<Tensor> parameters;
  std::vector<Tensor> inputs;  // of the whole batch
};

// Ends the capture of a step that trains all parameters by SGD.
inline Captured trained(Captured c, Capture& capture, Tensor loss, double lr = 0.05) {
  loss.backward();
  optim::Rule rule;
  rule.kind = optim::RuleKind::kSgd;
  rule.lr = lr;
  capture.add_update(rule, c.parameters);
  c.g = capture.finish(std::vector<Tensor>{loss});
  return c;
}

struct MlpOptions {
  int blocks = 2;
  int64_t rows = 8, width = 6, hidden = 8;
  double dropout = 0;
  int micro_batches = 1;
  bool adam = true;
  bool shared = false;  // all blocks have the same weights
  int repeats = 1;      // every block is computed so often, and the results are added
};

// y = x + down(tanh(up(x))), so often; the loss is the mean of squares of y - target.
inline Captured mlp(const Layout& l, const MlpOptions& o = {}) {
  Captured c;
  std::vector<Tensor> up, bias, down;
  for (int b = 0; b < o.blocks; ++b) {
    const int64_t draw = o.shared ? 0 : 10 * b;
    if (o.shared && b > 0) {
      up.push_back(up[0]);
      bias.push_back(bias[0]);
      down.push_back(down[0]);
      continue;
    }
    NdSbp bias_sbp = l.up;
    for (int a = 0; a < bias_sbp.size(); ++a)
      if (bias_sbp[a].is_split()) bias_sbp = bias_sbp.with(a, sbp::split(0));
    up.push_back(parameter(l, {o.width, o.hidden}, l.up, draw));
    bias.push_back(parameter(l, {o.hidden}, bias_sbp, draw + 1));
    down.push_back(parameter(l, {o.hidden, o.width}, l.down, draw + 2));
    for (auto& list : {up, bias, down}) c.parameters.push_back(list.back());
  }
  c.inputs = {random(l, {o.rows, o.width}, l.data, 1000), random(l, {o.rows, o.width}, l.data, 1001)};
  Capture capture;
  capture.set_micro_batches(o.micro_batches);
  Tensor x = capture.input_like(c.inputs[0]), target = capture.input_like(c.inputs[1]);
  for (int b = 0; b < o.blocks; ++b) {
    const std::string path = "model.block" + std::to_string(b);
    const auto at = static_cast<size_t>(b);
    if (!o.shared || b == 0) {
      capture.name_external(up[at], path + ".up", true);
      capture.name_external(bias[at], path + ".bias", true);
      capture.name_external(down[at], path + ".down", true);
    }
    capture.push_scope(path);
    Tensor sum;
    for (int r = 0; r < o.repeats; ++r) {
      Tensor h = tanh(matmul(x, up[at]) + bias[at]);
      if (o.dropout > 0) h = dropout(h, o.dropout);
      Tensor y = matmul(h, down[at]);
      sum = sum.defined() ? sum + y : y;
    }
    x = x + sum;
    capture.pop_scope();
  }
  Tensor d = x - target;
  Tensor loss = mean(d * d);
  loss.backward();
  optim::Rule rule;
  rule.kind = o.adam ? optim::RuleKind::kAdam : optim::RuleKind::kSgd;
  rule.lr = 0.05;
  capture.add_update(rule, c.parameters);
  std::vector<Tensor> outputs{loss};
  if (o.micro_batches == 1) outputs.push_back(x);
  c.g = capture.finish(outputs);
  return c;
}

inline double difference(const Tensor& a, const Tensor& b) {
  NoGradGuard guard;
  Tensor x = a.full(), y = b.full();
  if (!(x.shape() == y.shape())) return INFINITY;
  if (x.numel() == 0) return 0;
  return amax(abs(x.to(float64) - y.to(float64))).item().as_double();
}

// The rows of micro-batch m of n.
inline std::vector<Tensor> micro_batch(const Captured& c, int m, int n) {
  NoGradGuard guard;
  std::vector<Tensor> parts;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const Tensor& x = c.inputs[i];
    const int64_t rows = x.size(0) / n;
    Tensor part = narrow(x.full(), 0, m * rows, rows);
    if (x.is_global()) {
      // Every rank has the whole value; it takes its part of it.
      Placement all = Placement::all("cpu");
      part = to_global(part, all, NdSbp(sbp::broadcast())).to_global(x.placement(), x.nd_sbp());
    }
    parts.push_back(part);
  }
  return parts;
}

// Losses and parameters over some steps.
struct Course {
  std::vector<Tensor> losses, parameters, others;
};
inline Course run(Captured& c, int steps = 3) {
  Course course;
  OptimizerState state;
  manual_seed(3);
  for (int s = 0; s < steps; ++s) {
    std::vector<Tensor> outputs;
    if (c.g.micro_batches == 1) {
      outputs = interpret(c.g, c.inputs, state);
    } else {
      std::vector<std::vector<Tensor>> parts;
      for (int m = 0; m < c.g.micro_batches; ++m) parts.push_back(micro_batch(c, m, c.g.micro_batches));
      auto each = interpret_step(c.g, parts, state);
      NoGradGuard guard;
      Tensor sum;
      for (auto& o : each) sum = sum.defined() ? sum + o[0] : o[0];
      outputs = {sum / Scalar(static_cast<double>(each.size()))};
    }
    course.losses.push_back(outputs[0]);
    for (size_t i = 1; i < outputs.size(); ++i) course.others.push_back(outputs[i]);
  }
  course.parameters = c.parameters;
  return course;
}
inline void expect_equal(const Course& a, const Course& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (size_t i = 0; i < a.losses.size(); ++i)
    EXPECT_LE(difference(a.losses[i], b.losses[i]), tolerance) << "loss of step " << i;
  for (size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_LE(difference(a.parameters[i], b.parameters[i]), tolerance) << "parameter " << i;
  ASSERT_EQ(a.others.size(), b.others.size());
  for (size_t i = 0; i < a.others.size(); ++i)
    EXPECT_LE(difference(a.others[i], b.others[i]), tolerance) << "output " << i;
}

// The only passes that run are these.
inline CompileOptions only(std::vector<std::string> names, CompileOptions options = {}) {
  options.verify = true;
  for (auto& p : passes())
    if (std::find(names.begin(), names.end(), p.name) == names.end()) options.disabled_passes.push_back(p.name);
  return options;
}

// Puts parameters into the shards that ZeRO 3 asks for, here and in all handles. Returns how many.
inline int store_shards(Graph& g, const CompileOptions& options) {
  const auto specs = zero3_specs(g, options);
  NoGradGuard guard;
  int n = 0;
  for (size_t e = 0; e < specs.size(); ++e) {
    if (!specs[e]) continue;
    Tensor& t = g.externals[e].tensor;
    Tensor part = t.detach().to_global(specs[e]->placement, specs[e]->nd_sbp);
    t.impl()->array = part.array().defined() ? kernels::contiguous(part.array()) : Array();
    t.impl()->spec = specs[e];
    ++n;
  }
  return n;
}

// Whether the passes change nothing of what is computed.
inline Captured expect_unchanged(const std::function<Captured()>& make, const CompileOptions& options,
                                 double tolerance = 0) {
  Captured before = make(), after = make();
  run_passes(after.g, options);
  expect_equal(run(before), run(after), tolerance);
  return after;
}

inline int64_t count(const Graph& g, const std::function<bool(const Node&)>& wanted) {
  return std::count_if(g.nodes.begin(), g.nodes.end(), wanted);
}
inline int64_t count_op(const Graph& g, std::string_view name) {
  return count(g, [&](const Node& n) { return n.kind == NodeKind::kOp && name == n.op->name(); });
}
inline int64_t count_kind(const Graph& g, NodeKind kind) {
  return count(g, [&](const Node& n) { return n.kind == kind; });
}
// Boxings that need bytes from other ranks.
inline int64_t count_collectives(const Graph& g, Section section) {
  return count(g, [&](const Node& n) {
    return n.kind == NodeKind::kBoxing && n.section == section &&
        (g.value(n.in[0]).spec->nd_sbp.has_partial() ||
         (g.value(n.in[0]).spec->nd_sbp.has_split() && g.value(n.out[0]).spec->nd_sbp.is_broadcast()));
  });
}

}  // namespace holon::graph::testing
