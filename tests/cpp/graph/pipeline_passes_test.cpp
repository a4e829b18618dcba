// Passes on graphs with stages, and ZeRO 3.
#include <functional>

#include "holon/base/error.h"
#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/matmul.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"
#include "tests/cpp/graph/small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

struct PipelineOptions {
  int micro_batches = 1;
  bool tied = false;   // the last stage reads the first one's weight
  bool marked = true;  // stages are given by scopes
  std::vector<int> stage{0, 1};
};

// Each stage on ranks of its own: h = tanh(x w0) | loss = mean((h w1 - target)^2), with w1 the transpose of w0 if they
// are tied.
Captured pipeline(const Placement& p0, const Placement& p1, const PipelineOptions& o = {}) {
  const auto b = NdSbp::filled(p0.hierarchy().size(), sbp::broadcast());
  const auto split = b.with(0, sbp::split(0));
  Layout l0{p0, split, b, b, b}, l1{p1, split, b, b, b};
  Captured c;
  c.parameters = {parameter(l0, {6, 8}, b, 0), parameter(l0, {8}, b, 1)};
  if (!o.tied) c.parameters.push_back(parameter(l1, {8, 6}, b, 2));
  c.inputs = {random(l0, {16, 6}, split, 1000), random(l1, {16, 6}, split, 1001)};
  Capture capture;
  capture.set_micro_batches(o.micro_batches);
  Tensor x = capture.input_like(c.inputs[0]), target = capture.input_like(c.inputs[1]);
  capture.push_scope("model.first", o.marked ? o.stage[0] : -1);
  Tensor h = tanh(matmul(x, c.parameters[0]) + c.parameters[1]);
  capture.pop_scope();
  capture.push_scope("model.last", o.marked ? o.stage[1] : -1);
  h = h.to_global(p1, split);
  Tensor w = o.tied ? c.parameters[0].to_global(p1, b).transpose(0, 1) : c.parameters[2];
  Tensor d = matmul(exp(h), w) - target;
  capture.pop_scope();
  Tensor loss = mean(d * d);
  loss.backward();
  optim::Rule rule;
  rule.kind = optim::RuleKind::kAdam;
  rule.lr = 0.05;
  capture.add_update(rule, c.parameters);
  c.g = capture.finish(std::vector<Tensor>{loss});
  return c;
}

Placement on(std::vector<int64_t> ranks) { return Placement("cpu", std::move(ranks)); }

TEST(Stages, NodesWithoutOneTakeThatOfWhatTheyBelongTo) {
  comm::run_ranks(2, [](int) {
    Captured c = pipeline(on({0}), on({1}));
    run_passes(c.g, only({"stages"}));
    EXPECT_EQ(c.g.stages, 2);
    for (auto& n : c.g.nodes) {
      ASSERT_GE(n.stage, 0) << str(c.g, n);
      if (n.kind != NodeKind::kOp) continue;
      const int rank = c.g.value(n.out[0]).spec->placement.ranks()[0];
      EXPECT_EQ(n.stage, rank) << str(c.g, n);
    }
    // Without stages there is one.
    c = pipeline(on({0}), on({1}), {.marked = false});
    run_passes(c.g, only({"stages"}));
    EXPECT_EQ(c.g.stages, 1);
    for (auto& n : c.g.nodes) EXPECT_EQ(n.stage, 0);
  });
}

std::string refused(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kValue) << e.what();
    return e.what();
  }
  return "";
}

TEST(Stages, ErrorsNameTheModule) {
  comm::run_ranks(2, [](int) {
    Captured c = pipeline(on({0}), on({1}), {.stage = {0, 2}});
    std::string said = refused([&] { run_passes(c.g, only({"stages"})); });
    EXPECT_NE(said.find("stage 1 of the pipeline has nothing to do"), std::string::npos) << said;
    EXPECT_NE(said.find("model.last"), std::string::npos) << said;
    c = pipeline(on({0}), on({1}), {.stage = {1, 0}});
    said = refused([&] { run_passes(c.g, only({"stages"})); });
    EXPECT_NE(said.find("model.last, of stage 0, reads what stage 1 computes"), std::string::npos) << said;
    c = pipeline(on({0}), on({1}));
    c.g.stages = 3;
    said = refused([&] { run_passes(c.g, only({"stages"})); });
    EXPECT_NE(said.find("stage 2"), std::string::npos) << said;
  });
}

CompileOptions everything(int zero = 0) {
  CompileOptions o;
  o.verify = true;
  o.bucket_bytes = 1 << 20;
  o.schedule = "zero_bubble";
  o.zero_stage = zero;
  return o;
}

TEST(Pipeline, AllPassesKeepWhatStagesCompute) {
  auto check = [](const Placement& p0, const Placement& p1, bool tied, int zero) {
    Captured whole = pipeline(p0, p1, {.tied = tied}), parts = pipeline(p0, p1, {.micro_batches = 4, .tied = tied});
    run_passes(parts.g, everything(zero));
    expect_equal(run(whole), run(parts), 1e-5);
  };
  comm::run_ranks(2, [&](int) {
    for (bool tied : {false, true}) check(on({0}), on({1}), tied, 0);
  });
  comm::run_ranks(4, [&](int) {
    for (bool tied : {false, true})
      for (int zero : {0, 1, 2}) check(on({0, 1}), on({2, 3}), tied, zero);
  });
}

// As compiled: every schedule, with parameters, states and gradients whole or in shards.
TEST(Pipeline, CompiledStepsComputeTheSame) {
  comm::run_ranks(4, [](int) {
    for (int variant = 0; variant < 4; ++variant) {
      const bool tied = variant % 2;
      const Placement p0 = on({0, 1}), p1 = variant < 2 ? on({2, 3}) : p0;  // both stages on the same ranks
      Captured plain = pipeline(p0, p1, {.tied = tied});
      const Course expected = run(plain);
      for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"})
        for (int zero : {0, 1, 2, 3}) {
          SCOPED_TRACE(std::string(schedule) + ", variant " + std::to_string(variant) + ", zero " +
                       std::to_string(zero));
          Captured c = pipeline(p0, p1, {.micro_batches = 4, .tied = tied});
          CompileOptions o;
          o.schedule = schedule;
          o.zero_stage = zero;
          o.verify = true;
          o.recompute = {"model.last"};
          Step step(std::move(c.g), o);
          Course got;
          for (int s = 0; s < 3; ++s) {
            Tensor losses = step.run(c.inputs)[0];
            NoGradGuard guard;
            got.losses.push_back(mean(losses));
          }
          got.parameters = c.parameters;
          expect_equal(expected, got, 1e-5);
        }
    }
  });
}

TEST(Pipeline, ATiedWeightCrossesOncePerStep) {
  comm::run_ranks(2, [](int) {
    Captured c = pipeline(on({0}), on({1}), {.micro_batches = 4, .tied = true});
    run_passes(c.g, everything());
    auto crosses = [&](Section section) {
      return count(c.g, [&](const Node& n) {
        return n.kind == NodeKind::kBoxing && n.section == section &&
            !(c.g.value(n.in[0]).spec->placement == c.g.value(n.out[0]).spec->placement);
      });
    };
    EXPECT_EQ(crosses(Section::kOnceBefore), 1);  // the weight
    EXPECT_EQ(crosses(Section::kForward), 1);     // activations
    EXPECT_EQ(crosses(Section::kBackward), 1);    // their gradients
    EXPECT_EQ(crosses(Section::kOnceAfter), 1);   // the weight's gradient
  });
}

TEST(SplitWeight, WhatNoEarlierStageWaitsFor) {
  comm::run_ranks(2, [](int) {
    CompileOptions o;
    o.schedule = "zero_bubble";
    Captured whole = pipeline(on({0}), on({1})), c = pipeline(on({0}), on({1}), {.micro_batches = 4});
    run_passes(c.g, only({"stages", "hoist", "accumulate", "split_weight"}, o));
    expect_equal(run(whole), run(c), 1e-5);
    // The last stage's product for its weight waits; the one for its input does not, nor does anything of stage 0.
    int waiting = 0;
    for (auto& n : c.g.nodes) {
      if (n.section != Section::kWeight) continue;
      EXPECT_EQ(n.stage, 1) << str(c.g, n);
      waiting += n.kind == NodeKind::kOp && std::string_view(n.op->name()).starts_with("matmul");
    }
    EXPECT_EQ(waiting, 1) << str(c.g);
  });
}

TEST(Zero3, ParametersLieInShards) {
  auto check = [](const Layout& l, int micro_batches) {
    CompileOptions o = everything(3);
    // A micro-batch draws numbers of its own: compare without, then.
    const double p = micro_batches > 1 ? 0 : 0.2;
    Captured whole = mlp(l, {.rows = 16, .dropout = p, .repeats = 2});
    Captured c = mlp(l, {.rows = 16, .dropout = p, .micro_batches = micro_batches, .repeats = 2});
    const int sharded = store_shards(c.g, o);
    EXPECT_EQ(sharded, l.up.size() > 1 ? 4 : 6);  // not biases whose only axis is divided already
    o.bucket_bytes = 0;
    run_passes(c.g, o);
    // Gathered where forward and where backward read it: the first product and the biases are not read in backward.
    EXPECT_EQ(
        count(c.g,
              [](const Node& n) { return n.kind == NodeKind::kBoxing && n.pinned && n.section == Section::kForward; }),
        sharded);
    EXPECT_GE(
        count(c.g,
              [](const Node& n) { return n.kind == NodeKind::kBoxing && n.pinned && n.section == Section::kBackward; }),
        3);
    EXPECT_EQ(count_kind(c.g, NodeKind::kAssign), 0);
    Course a = run(whole), b = run(c);
    a.others.clear();
    b.others.clear();
    expect_equal(a, b, 1e-5);
  };
  comm::run_ranks(2, [&](int) {
    check(data_parallel(), 1);
    check(data_parallel(), 4);
  });
  comm::run_ranks(4, [&](int) { check(grid(), 1); });
}

TEST(Boxing, GradientsOfAParameterThatIsUsedTwiceMeetOnce) {
  comm::run_ranks(2, [](int) {
    auto make = [] { return mlp(data_parallel(), {.shared = true}); };
    Captured before = make();
    EXPECT_EQ(count_collectives(before.g, Section::kBackward), 6);
    Captured after = expect_unchanged(make, only({"stages", "boxing", "dead_code_again"}), 1e-6);
    EXPECT_EQ(count_collectives(after.g, Section::kBackward), 3) << str(after.g);
  });
}

}  // namespace
}  // namespace holon::graph
