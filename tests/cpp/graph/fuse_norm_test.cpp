// Residuals and norms as one op: where the pass puts them, where it leaves what is there, and that results stay.
#include <functional>

#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/linalg.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/scan.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "tests/cpp/graph/small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

struct NormOptions {
  bool rms = false, by_two_axes = false;
  DType narrow = float32;  // what products are computed in, as under autocast
  int micro_batches = 1;
  double dropout = 0;
};

Tensor norm_of(const Tensor& x, const Tensor& w, const Tensor& b, const NormOptions& o) {
  const Dims shape = w.shape();
  return o.rms ? rms_norm(x, shape, w, 1e-5) : layer_norm(x, shape, w, b);
}

// x = x + down(tanh(up(norm(x)))) twice, then a norm, and its training step. Products of three axes, so that their
// epilogues take no sums.
Captured transformer(const Layout& l, const NormOptions& o = {}) {
  Captured c;
  std::vector<Tensor> up, down, w, b;
  const Dims row = o.by_two_axes ? Dims{4, 6} : Dims{6};
  for (int i = 0; i < 3; ++i) {
    up.push_back(parameter(l, {6, 10}, l.up, 10 * i));
    down.push_back(parameter(l, {10, 6}, l.down, 10 * i + 1));
    w.push_back(parameter(l, row, l.whole, 10 * i + 2));
    b.push_back(parameter(l, row, l.whole, 10 * i + 3));
    if (i < 2)
      for (auto& list : {up, down}) c.parameters.push_back(list.back());
    c.parameters.push_back(w.back());
    if (!o.rms) c.parameters.push_back(b.back());
  }
  c.inputs = {random(l, {8, 4, 6}, l.data, 1000), random(l, {8, 4, 6}, l.data, 1001)};
  Capture capture;
  capture.set_micro_batches(o.micro_batches);
  Tensor x = capture.input_like(c.inputs[0]), target = capture.input_like(c.inputs[1]);
  auto narrowed = [&](const Tensor& t) { return o.narrow == float32 ? t : t.to(o.narrow); };
  for (size_t i = 0; i < 2; ++i) {
    capture.push_scope("model.block" + std::to_string(i));
    Tensor h = tanh(matmul(narrowed(norm_of(x, w[i], b[i], o)), narrowed(up[i])));
    Tensor f = matmul(h, narrowed(down[i]));
    if (o.dropout > 0) f = dropout(f, o.dropout);
    x = x + (o.narrow == float32 ? f : f.to(float32));
    capture.pop_scope();
  }
  x = norm_of(x, w[2], b[2], o);
  Tensor d = x - target, loss = mean(d * d);
  return trained(std::move(c), capture, loss);
}

std::string op(const char* name, bool rms) {
  std::string s = name;
  if (rms) s.replace(s.find("layer"), 5, "rms");
  return s;
}

void expect_fused(const Graph& g, bool rms, int64_t sums = 2, int64_t gradients = 2) {
  EXPECT_EQ(count_op(g, op("add_layer_norm", rms)), sums) << str(g);
  EXPECT_EQ(count_op(g, op("layer_norm_backward_add", rms)), gradients) << str(g);
  EXPECT_EQ(count_op(g, op("layer_norm_stats", rms)), 3 - sums) << "the first norm, of the input";
}

// The sequence (axis 1) is split.
Layout sequence_parallel() {
  auto b = sbp::broadcast();
  return {Placement("cpu", {0, 1}), sbp::split(1), b, b, b};
}

TEST(FuseNorm, ATrainingStep) {
  for (bool rms : {false, true})
    for (bool by_two_axes : {false, true})
      for (double dropped : {0.0, 0.3}) {
        NormOptions o{.rms = rms, .by_two_axes = by_two_axes, .dropout = dropped};
        Captured after =
            expect_unchanged([&] { return transformer(local(), o); }, only({"dead_code", "fuse_norm"}), 2e-6);
        // The input needs no gradient: nothing is added to that of the first norm.
        expect_fused(after.g, rms, 2, 1);
        EXPECT_EQ(count_op(after.g, "add"), 1) << "of the loss, which multiplies d by itself; " << str(after.g);
      }
}

TEST(FuseNorm, OnSeveralRanks) {
  for (int m : {1, 2})
    for (bool rms : {false, true}) {
      auto same = [&](const Layout& l) {
        NormOptions o{.rms = rms, .micro_batches = m};
        CompileOptions all;
        all.verify = true;
        all.bucket_bytes = 1 << 20;
        Captured before = transformer(l, o), after = transformer(l, o);
        if (m > 1) run_passes(before.g, only({"accumulate"}));
        all.disabled_passes = {"fuse_epilogue"};  // which takes the sums where products are not partial
        run_passes(after.g, all);
        expect_equal(run(before), run(after), 4e-6);
        EXPECT_EQ(count_op(after.g, op("add_layer_norm", rms)), 2) << str(after.g);
        EXPECT_EQ(count_op(after.g, op("layer_norm_backward_add", rms)), 1) << str(after.g);
      };
      same(local());
      comm::run_ranks(2, [&](int) {
        same(data_parallel());
        same(tensor_parallel());
        same(sequence_parallel());
      });
      comm::run_ranks(4, [&](int) { same(grid()); });
    }
}

TEST(FuseNorm, CastsOfAutocastBecomeTheirs) {
  for (DType narrow : {bfloat16, float16})
    for (bool rms : {false, true}) {
      NormOptions o{.rms = rms, .narrow = narrow};
      auto make = [&] { return transformer(local(), o); };
      Captured before = make(), after = expect_unchanged(make, only({"dead_code", "cse", "fuse_norm"}), 2e-5);
      expect_fused(after.g, rms, 2, 1);
      int64_t narrow_norms = 0;
      for (auto& n : after.g.nodes) {
        if (n.kind != NodeKind::kOp) continue;
        if (op("add_layer_norm", rms) == n.op->name()) {
          EXPECT_EQ(after.g.value(n.out[0]).dtype, float32);
          const DType a = after.g.value(n.in[0]).dtype, b = after.g.value(n.in[1]).dtype;
          EXPECT_TRUE(a == narrow || b == narrow) << str(after.g, n);
          narrow_norms += after.g.value(n.out[1]).dtype == narrow;
        }
        if (op("layer_norm_backward_add", rms) == n.op->name()) {
          EXPECT_EQ(after.g.value(n.in[0]).dtype, narrow) << str(after.g, n);
        }
      }
      EXPECT_EQ(narrow_norms, 1) << "the last one's reader is no product";
    }
}

TEST(FuseNorm, WhatIsComputedAgain) {
  CompileOptions o = only({"stages", "recompute", "fuse_norm", "dead_code_again"});
  o.recompute = {"model.block0", "model.block1"};
  Captured after = expect_unchanged([&] { return transformer(local()); }, o, 2e-6);
  const int64_t again = count(after.g, [](const Node& n) {
    return n.pinned && n.section == Section::kBackward && n.kind == NodeKind::kOp &&
        n.op->name() == std::string("add_layer_norm");
  });
  EXPECT_EQ(again, 0) << "a block's own sum is kept: it leaves the block";
  EXPECT_EQ(count_op(after.g, "add_layer_norm"), 2) << str(after.g);

  // A module that holds both.
  auto both = [&] {
    Captured c;
    c.parameters = {parameter(local(), {6, 6}, {}, 0), parameter(local(), {6}, {}, 1)};
    c.inputs = {random(local(), {8, 6}, {}, 1000), random(local(), {8, 6}, {}, 1001)};
    Capture capture;
    Tensor x = capture.input_like(c.inputs[0]), target = capture.input_like(c.inputs[1]);
    capture.push_scope("model.all");
    Tensor h = matmul(x, c.parameters[0]);
    for (int i = 0; i < 2; ++i) h = layer_norm(h + exp(h), Dims{6}, c.parameters[1], Tensor());
    h = layer_norm(h + x, Dims{6}, c.parameters[1], Tensor());
    h = tanh(h);
    capture.pop_scope();
    Tensor d = h - target, loss = mean(d * d);
    return trained(std::move(c), capture, loss);
  };
  o.recompute = {"model.all"};
  after = expect_unchanged(both, o, 2e-6);
  auto sections = [&](Section s) {
    return count(after.g, [&](const Node& n) {
      return n.section == s && n.kind == NodeKind::kOp && n.op->name() == std::string("add_layer_norm");
    });
  };
  EXPECT_EQ(sections(Section::kForward), 1) << "exp and the sum are a chain; " << str(after.g);
  EXPECT_EQ(sections(Section::kBackward), 3) << "there backward reads the exponential, too; " << str(after.g);
}

Captured values(const std::function<std::vector<Tensor>(const Tensor&, const Tensor&, const Tensor&)>& f,
                DType dtype = float32) {
  Captured c;
  for (int i = 0; i < 2; ++i) c.inputs.push_back(random(local(), {5, 6}, {}, i).to(dtype));
  c.parameters = {random(local(), {6}, {}, 2).to(dtype)};
  Capture capture;
  Tensor x = capture.input_like(c.inputs[0]), y = capture.input_like(c.inputs[1]);
  c.g = capture.finish(f(x, y, c.parameters[0]));
  return c;
}

Tensor normed(const Tensor& x, const Tensor& w) { return layer_norm(x, Dims{6}, w, Tensor()); }

TEST(FuseNorm, SumsThatAreOutputsAndNormsInEveryType) {
  for (DType t : {float32, float64, bfloat16, float16}) {
    Captured after = expect_unchanged(
        [&] {
          return values(
              [](const Tensor& x, const Tensor& y, const Tensor& w) {
                Tensor sum = x + y;
                return std::vector<Tensor>{sum, normed(sum, w), sum * sum};
              },
              t);
        },
        only({"fuse_norm"}));
    EXPECT_EQ(count_op(after.g, "add_layer_norm"), 1) << name(t);
  }
}

TEST(FuseNorm, LeavesWhatOthersNeed) {
  auto unchanged = [&](const char* what,
                       const std::function<std::vector<Tensor>(const Tensor&, const Tensor&, const Tensor&)>& f) {
    Captured after = expect_unchanged([&] { return values(f); }, only({"fuse_norm"}));
    EXPECT_EQ(count_op(after.g, "add_layer_norm"), 0) << what;
    EXPECT_EQ(count_op(after.g, "layer_norm_stats"), 1) << what;
  };
  unchanged("a reader before the norm", [](const Tensor& x, const Tensor& y, const Tensor& w) {
    Tensor sum = x + y, other = tanh(sum);
    return std::vector<Tensor>{normed(sum, w), other};
  });
  unchanged("a broadcast",
            [](const Tensor& x, const Tensor&, const Tensor& w) { return std::vector<Tensor>{normed(x + w, w)}; });
  unchanged("a chain", [](const Tensor& x, const Tensor& y, const Tensor& w) {
    return std::vector<Tensor>{normed(x + exp(y), w)};
  });
  unchanged("no sum",
            [](const Tensor& x, const Tensor& y, const Tensor& w) { return std::vector<Tensor>{normed(x - y, w)}; });
  // A cast that others read, too, stays; the sum is taken.
  Captured after = expect_unchanged(
      [&] {
        return values([](const Tensor& x, const Tensor& y, const Tensor& w) {
          Tensor wide = y.to(bfloat16).to(float32), z = normed(x + wide, w);
          return std::vector<Tensor>{z.to(bfloat16), z, wide};
        });
      },
      only({"fuse_norm"}));
  EXPECT_EQ(count_op(after.g, "add_layer_norm"), 1);
  EXPECT_EQ(count_op(after.g, "cast"), 3);
}

// What is written between the sum and the norm is another value until the step's end.
TEST(FuseNorm, BesideAWrite) {
  Captured after = expect_unchanged(
      [&] {
        return values([](const Tensor& x, const Tensor& y, const Tensor& w) {
          Tensor sum = w + w;
          add_(w, sum_to_size(y, Dims{6}));
          return std::vector<Tensor>{normed(sum, w) + x};
        });
      },
      only({"fuse_norm"}));
  EXPECT_EQ(count_op(after.g, "add_layer_norm"), 1) << str(after.g);
}

// Two addends of two bytes make a float32 sum: only one of the casts may go.
TEST(FuseNorm, TheSumKeepsItsType) {
  Captured after = expect_unchanged(
      [&] {
        return values([](const Tensor& x, const Tensor& y, const Tensor& w) {
          return std::vector<Tensor>{normed(x.to(bfloat16).to(float32) + y.to(bfloat16).to(float32), w)};
        });
      },
      only({"fuse_norm"}));
  EXPECT_EQ(count_op(after.g, "add_layer_norm"), 1);
  EXPECT_EQ(count_op(after.g, "cast"), 3);
}

// The sum is written over what is added where nobody reads that later: fusing takes no more memory.
TEST(FuseNorm, WritesOverWhatIsAdded) {
  auto bytes = [](bool fused) {
    Captured c;
    c.inputs = {random(local(), {64, 6}, {}, 1)};
    Tensor w = random(local(), {6}, {}, 2);
    Capture capture;
    Tensor x = capture.input_like(c.inputs[0]);
    for (int i = 0; i < 3; ++i) x = normed(matmul(softmax(x), transpose(x, 0, 1).matmul(x)) + cumsum(x, 0), w);
    Graph g = capture.finish(std::vector<Tensor>{sum(x)});
    CompileOptions o;
    o.disabled_passes = {"fuse_epilogue"};
    if (!fused) o.disabled_passes.push_back("fuse_norm");
    Step step(std::move(g), o);
    EXPECT_EQ(count_op(step.graph(), "add_layer_norm"), fused ? 3 : 0);
    step.run(c.inputs);
    return step.stats().arena_bytes;
  };
  EXPECT_LE(bytes(true), bytes(false));
}

}  // namespace
}  // namespace holon::graph
