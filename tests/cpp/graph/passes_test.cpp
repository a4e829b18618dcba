#include <algorithm>

#include "holon/base/error.h"
#include "holon/graph/step.h"
#include "holon/graph/virtual_rank.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/unary.h"
#include "tests/cpp/graph/small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

TEST(Passes, KeepWhatSmallModelsCompute) {
  CompileOptions all;
  all.verify = true;
  all.bucket_bytes = 1 << 20;
  all.recompute = {"model.block1"};
  auto same = [&](const Layout& l) {
    for (int zero : {0, 1, 2}) {
      CompileOptions options = all;  // ranks are threads
      options.zero_stage = zero;
      expect_unchanged([&] { return mlp(l, {.dropout = 0.3}); }, options, 1e-6);
    }
  };
  same(local());
  comm::run_ranks(2, [&](int) {
    same(data_parallel());
    same(tensor_parallel());
  });
  comm::run_ranks(4, [&](int) { same(grid()); });
}

TEST(Passes, DoTheSameOnEveryRankAndForOneThatIsNotThere) {
  CompileOptions all;
  all.verify = true;
  all.bucket_bytes = 1000;
  all.zero_stage = 2;
  all.recompute = {"model.block0"};
  auto hash_of = [&] {
    Captured c = mlp(grid(), {.dropout = 0.3, .micro_batches = 4});
    run_passes(c.g, all);
    return hash(c.g);
  };
  std::vector<uint64_t> hashes(4);
  comm::run_ranks(4, [&](int rank) { hashes[static_cast<size_t>(rank)] = hash_of(); });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(hashes[static_cast<size_t>(rank)], hashes[0]) << rank;
  VirtualRank rank(2, 4);
  EXPECT_EQ(hash_of(), hashes[0]);
}

TEST(Passes, AreNamedTimedAndSwitchable) {
  Captured c = mlp(local());
  std::vector<PassReport> reports;
  run_passes(c.g, only({"cse", "dead_code"}), &reports);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].name, "dead_code");
  EXPECT_EQ(reports[1].name, "cse");
  EXPECT_EQ(reports[1].nodes_after, static_cast<int64_t>(c.g.nodes.size()));
  CompileOptions wrong;
  wrong.disabled_passes = {"csee"};
  try {
    run_passes(c.g, wrong);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"csee\""), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("accumulate"), std::string::npos) << e.what();
  }
}

TEST(DeadCode, DropsWhatNobodyReads) {
  auto make = [] {
    Captured c;
    c.inputs = {random(local(), {4, 4}, {}, 0)};
    Capture capture;
    Tensor x = capture.input_like(c.inputs[0]);
    Tensor unused = tanh(exp(x));
    c.g = capture.finish(std::vector<Tensor>{x * x});
    return c;
  };
  Captured after = expect_unchanged(make, only({"dead_code"}));
  EXPECT_EQ(after.g.nodes.size(), 1u);
}

TEST(Cse, MergesWhatIsAlikeAndOrdersWrites) {
  auto make = [] {
    Captured c;
    c.inputs = {random(local(), {4, 4}, {}, 0)};
    Tensor state = random(local(), {4, 4}, {}, 1);
    c.parameters = {state};
    Capture capture;
    Tensor x = capture.input_like(c.inputs[0]);
    Tensor a = exp(x) + exp(x), before = state * x;
    add_(state, x);
    Tensor after = state * x;  // of another value
    c.g = capture.finish(std::vector<Tensor>{a, before - after, dropout(x), dropout(x)});
    return c;
  };
  Captured after = expect_unchanged(make, only({"cse", "dead_code"}));
  EXPECT_EQ(count_op(after.g, "exp"), 1);
  EXPECT_EQ(count_op(after.g, "dropout_mask"), 2);  // two draws
  EXPECT_EQ(count_kind(after.g, NodeKind::kAssign), 1);
}

TEST(Cse, OneGatherServesSeveralReaders) {
  comm::run_ranks(2, [](int) {
    auto make = [] {
      Layout l = data_parallel();
      Captured c;
      c.inputs = {random(l, {4, 6}, sbp::split(0), 0)};
      Tensor w = random(l, {6, 6}, sbp::split(1), 1);
      Capture capture;
      Tensor x = capture.input_like(c.inputs[0]);
      Tensor whole = w.to_global(l.placement, sbp::broadcast()), again = w.to_global(l.placement, sbp::broadcast());
      c.g = capture.finish(std::vector<Tensor>{matmul(x, whole), matmul(tanh(x), again)});
      return c;
    };
    Captured before = make(), after = expect_unchanged(make, only({"cse", "dead_code"}));
    EXPECT_EQ(count_kind(before.g, NodeKind::kBoxing), 2);
    EXPECT_EQ(count_kind(after.g, NodeKind::kBoxing), 1);
  });
}

TEST(Boxing, ChainsBecomeOneBoxing) {
  comm::run_ranks(2, [](int) {
    Layout l = data_parallel();
    auto make = [&] {
      Captured c;
      c.inputs = {random(l, {4, 6}, sbp::split(0), 0)};
      Capture capture;
      Tensor x = capture.input_like(c.inputs[0]);
      Tensor y = tanh(x).to_global(l.placement, sbp::broadcast()).to_global(l.placement, sbp::split(1));
      c.g = capture.finish(std::vector<Tensor>{exp(y)});
      return c;
    };
    Captured after = expect_unchanged(make, only({"boxing"}));
    ASSERT_EQ(count_kind(after.g, NodeKind::kBoxing), 1);
    auto back = [&] {
      Captured c;
      c.inputs = {random(l, {4, 6}, sbp::split(0), 0)};
      Capture capture;
      Tensor x = capture.input_like(c.inputs[0]);
      Tensor y = tanh(x).to_global(l.placement, sbp::split(1)).to_global(l.placement, sbp::split(0));
      c.g = capture.finish(std::vector<Tensor>{exp(y)});
      for (auto& n : c.g.nodes) n.pinned = false;  // as if ops had asked for them
      return c;
    };
    after = expect_unchanged(back, only({"boxing"}));
    EXPECT_EQ(count_kind(after.g, NodeKind::kBoxing), 0);
  });
}

TEST(Boxing, ValuesMoveInTheirNarrowerDtype) {
  comm::run_ranks(2, [](int) {
    Layout l = data_parallel();
    auto make = [&] {
      Captured c;
      c.inputs = {random(l, {4, 6}, sbp::split(0), 0)};
      Capture capture;
      Tensor x = capture.input_like(c.inputs[0]);
      Tensor y = tanh(x).to_global(l.placement, sbp::broadcast()).to(bfloat16);
      Tensor z = tanh(x).to(bfloat16).to(float32).to_global(l.placement, sbp::broadcast());
      c.g = capture.finish(std::vector<Tensor>{y, exp(z)});
      for (auto& n : c.g.nodes) n.pinned = false;
      return c;
    };
    Captured after = expect_unchanged(make, only({"boxing"}));
    EXPECT_EQ(
        count(after.g,
              [&](const Node& n) { return n.kind == NodeKind::kBoxing && after.g.value(n.in[0]).dtype == bfloat16; }),
        2);
  });
}

TEST(ChooseSbp, ReadersCountAsWell) {
  comm::run_ranks(2, [](int) {
    // Eager splits each sum as what has come first; what is done with them wants the other axis.
    auto make = [] {
      Layout l = data_parallel();
      Captured c;
      c.inputs = {random(l, {8, 8}, sbp::split(0), 0)};
      for (int i = 0; i < 4; ++i) c.inputs.push_back(random(l, {8, 8}, sbp::split(1), 1 + i));
      Capture capture;
      std::vector<Tensor> in;
      for (auto& t : c.inputs) in.push_back(capture.input_like(t));
      Tensor x = tanh(in[0]);
      for (int i = 0; i < 4; ++i) x = tanh(x + in[1 + static_cast<size_t>(i)]);
      c.g = capture.finish(std::vector<Tensor>{exp(x.to_global(l.placement, sbp::split(1)))});
      return c;
    };
    Captured before = make(), after = expect_unchanged(make, only({"choose_sbp", "boxing", "dead_code_again"}));
    EXPECT_EQ(count_kind(before.g, NodeKind::kBoxing), 5) << str(before.g);
    EXPECT_EQ(count_kind(after.g, NodeKind::kBoxing), 1) << str(after.g);
    CompileOptions off;
    off.choose_sbp = false;
    after = expect_unchanged(make, only({"choose_sbp", "boxing", "dead_code_again"}, off));
    EXPECT_EQ(count_kind(after.g, NodeKind::kBoxing), 5);
  });
}

TEST(ConstantFold, WhatIsMadeOfNothingIsMadeOnce) {
  auto check = [](const Layout& l) {
    auto make = [&] {
      Captured c;
      c.inputs = {random(l, {6, 6}, l.data, 0)};
      Tensor outside = random(l, {6, 6}, l.data, 1);
      c.parameters = {outside};
      Capture capture;
      Tensor x = capture.input_like(c.inputs[0]);
      OnesOptions o;
      if (!l.is_local()) {
        o.placement = l.placement;
        o.sbp = sbp::broadcast();
      }
      Tensor mask = triu(ones({6, 6}, o) * Scalar(3.0), 1), noise = dropout(ones({6, 6}, o));
      c.g = capture.finish(std::vector<Tensor>{x * mask, exp(outside), noise, mask + mask});
      return c;
    };
    Captured after = expect_unchanged(make, only({"constant_fold", "dead_code_again"}));
    EXPECT_EQ(count_op(after.g, "triu"), 0);
    EXPECT_EQ(count_op(after.g, "add"), 0);
    EXPECT_EQ(count_op(after.g, "exp"), 1);           // the program may change what it is of
    EXPECT_EQ(count_op(after.g, "dropout_mask"), 1);  // another draw in each step
    CompileOptions none;
    none.fold_bytes = 0;
    after = expect_unchanged(make, only({"constant_fold"}, none));
    EXPECT_EQ(count_op(after.g, "triu"), 1);
  };
  check(local());
  comm::run_ranks(2, [&](int) { check(data_parallel()); });
}

TEST(Accumulate, GradientsAreRedistributedOncePerStep) {
  auto check = [](const Layout& l) {
    MlpOptions whole{.rows = 16}, parts{.rows = 16, .micro_batches = 4};
    Captured before = mlp(l, whole);
    // Without the other passes, so that every gradient is redistributed by itself.
    Captured after = mlp(l, parts);
    run_passes(after.g, only({"stages", "boxing", "hoist", "accumulate"}));
    Course a = run(before), b = run(after);
    a.others.clear();
    expect_equal(a, b, 1e-5);
    EXPECT_EQ(count_kind(after.g, NodeKind::kAccumulate), 6);
    return after;
  };
  check(local());
  comm::run_ranks(2, [&](int) {
    Captured c = check(data_parallel());
    EXPECT_EQ(count_collectives(c.g, Section::kBackward), 0);
    EXPECT_EQ(count_collectives(c.g, Section::kOnceAfter), 6);
    check(tensor_parallel());
  });
  comm::run_ranks(4, [&](int) { check(grid()); });
}

TEST(Buckets, GradientsMeetTogether) {
  comm::run_ranks(2, [](int) {
    CompileOptions o;
    o.bucket_bytes = 1 << 20;
    auto make = [] { return mlp(data_parallel()); };
    Captured after = expect_unchanged(make, only({"stages", "buckets"}, o));
    EXPECT_EQ(count_kind(after.g, NodeKind::kBoxing), 1 + count_kind(make().g, NodeKind::kBoxing) - 6);
    o.bucket_bytes = 300;  // 6 x 8 and 8 x 6 floats are 192 bytes, a bias is 32
    after = expect_unchanged(make, only({"stages", "buckets"}, o));
    EXPECT_EQ(count(after.g, [](const Node& n) { return n.kind == NodeKind::kBoxing && n.in.size() > 1; }), 2);
    // With several micro-batches the sums are redistributed.
    Captured whole = mlp(data_parallel(), {.rows = 16}), parts = mlp(data_parallel(), {.rows = 16, .micro_batches = 4});
    o.bucket_bytes = 1 << 20;
    run_passes(parts.g, only({"stages", "accumulate", "buckets"}, o));
    EXPECT_EQ(count_collectives(parts.g, Section::kOnceAfter), 1);
    Course a = run(whole), b = run(parts);
    a.others.clear();
    expect_equal(a, b, 1e-5);
  });
}

TEST(Recompute, InnerValuesOfAModuleAreComputedAgain) {
  auto check = [](const Layout& l) {
    CompileOptions o;
    o.recompute = {"model.block0", "model.block1"};
    auto make = [&] { return mlp(l, {.dropout = 0.4}); };
    Captured before = make(), after = expect_unchanged(make, only({"stages", "recompute", "dead_code_again"}, o));
    EXPECT_EQ(count_op(after.g, "tanh"), 2 * count_op(before.g, "tanh"));
    EXPECT_EQ(count_op(after.g, "dropout_mask"), 2 + count_op(before.g, "dropout_mask"));
    // What backward reads of forward is what the modules were given.
    std::vector<NodeId> made_by = producers(after.g);
    for (auto& n : after.g.nodes) {
      if (n.section != Section::kBackward) continue;
      for (ValueId v : n.in) {
        if (v == kNoValue || made_by[static_cast<size_t>(v)] < 0) continue;
        const Node& by = after.g.nodes[static_cast<size_t>(made_by[static_cast<size_t>(v)])];
        if (by.section == Section::kForward && by.kind == NodeKind::kOp) {
          EXPECT_NE(std::string(by.op->name()), "tanh") << str(after.g, n);
          EXPECT_NE(std::string(by.op->name()), "dropout_mask") << str(after.g, n);
        }
      }
    }
  };
  check(local());
  comm::run_ranks(2, [&](int) { check(data_parallel()); });
  comm::run_ranks(4, [&](int) { check(grid()); });
  CompileOptions o;
  o.recompute = {"model.blok0"};
  Captured c = mlp(local());
  try {
    run_passes(c.g, o);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kValue);
    EXPECT_NE(std::string(e.what()).find("model.block0"), std::string::npos) << e.what();
  }
}

TEST(Recompute, AMemoryBudgetIsMet) {
  auto check = [](const Layout& l) {
    // Wide inside: what blocks keep for backward is most of the memory.
    auto make = [&] { return mlp(l, {.blocks = 8, .rows = 64, .hidden = 64, .dropout = 0.3}); };
    Captured before = make();
    run_passes(before.g, only({"stages", "dead_code"}));
    const int64_t most = estimate_peak_bytes(before.g);
    for (double share : {0.9, 0.7, 0.5}) {
      CompileOptions o;
      o.memory_budget_bytes = static_cast<int64_t>(share * static_cast<double>(most));
      Captured after = expect_unchanged(make, only({"stages", "dead_code", "recompute", "dead_code_again"}, o), 1e-6);
      EXPECT_LE(estimate_peak_bytes(after.g), o.memory_budget_bytes);
      EXPECT_GT(count(after.g, [](const Node& n) { return n.pinned && n.section == Section::kBackward; }), 0) << share;
    }
    CompileOptions o;
    o.memory_budget_bytes = most / 100;
    try {
      run_passes(before.g, only({"recompute"}, o));
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kValue);
      EXPECT_NE(std::string(e.what()).find("at best"), std::string::npos) << e.what();
    }
  };
  check(local());
  comm::run_ranks(2, [&](int) { check(data_parallel()); });
}

TEST(Recompute, TheArenaIsWithinTheBudget) {
  auto make = [] { return mlp(local(), {.blocks = 8, .rows = 64, .hidden = 64, .dropout = 0.3}); };
  Captured plain = make();
  Step free(std::move(plain.g), {});
  manual_seed(3);
  const Tensor expected = free.run(plain.inputs)[1];
  for (double share : {0.95, 0.8, 0.6, 0.5}) {
    Captured c = make();
    CompileOptions o;
    o.memory_budget_bytes = static_cast<int64_t>(share * static_cast<double>(free.stats().arena_bytes));
    Step step(std::move(c.g), o);
    EXPECT_LE(step.stats().arena_bytes, o.memory_budget_bytes) << share;
    manual_seed(3);
    EXPECT_EQ(difference(expected, step.run(c.inputs)[1]), 0);
  }
}

TEST(Zero, StatesAreUpdatedInShards) {
  auto check = [](const Layout& l, int stage, int micro_batches) {
    CompileOptions o;
    o.zero_stage = stage;
    Captured whole = mlp(l, {.rows = 16}), after = mlp(l, {.rows = 16, .micro_batches = micro_batches});
    run_passes(after.g, only({"stages", "boxing", "zero", "hoist", "accumulate"}, o));
    Course a = run(whole), b = run(after);
    a.others.clear();
    b.others.clear();
    expect_equal(a, b, 1e-5);
    // All, but for biases whose only axis the tensor-parallel ranks divide.
    const int sharded = l.up.size() > 1 ? 4 : 6;
    const auto& shards = after.g.updates[0].shards;
    EXPECT_EQ(std::count_if(shards.begin(), shards.end(), [](auto* s) { return s && s->nd_sbp.has_split(); }), sharded);
    EXPECT_EQ(count_kind(after.g, NodeKind::kAssign), sharded);
    // With stage 2 a micro-batch's gradients go to the shards at once.
    for (auto& n : after.g.nodes) {
      if (n.kind != NodeKind::kAccumulate) continue;
      EXPECT_EQ(after.g.value(n.in[0]).spec->nd_sbp.has_partial(), stage == 1) << str(after.g, n);
    }
  };
  comm::run_ranks(2, [&](int) {
    for (int stage : {1, 2})
      for (int n : {1, 4}) check(data_parallel(), stage, n);
  });
  comm::run_ranks(4, [&](int) { check(grid(), 1, 1); });
  // A shard lies in the part that its rank has: rows that the second axis cuts are not cut by the first.
  comm::run_ranks(4, [&](int) {
    CompileOptions o;
    o.zero_stage = 1;
    Captured c = mlp(grid());
    run_passes(c.g, only({"zero"}, o));
    const Update& u = c.g.updates[0];
    for (size_t i = 0; i < u.externals.size(); ++i) {
      const std::string& name = c.g.externals[static_cast<size_t>(u.externals[i])].name;
      if (!name.ends_with("down")) continue;
      ASSERT_TRUE(u.shards[i]);
      EXPECT_EQ(u.shards[i]->nd_sbp, (NdSbp{sbp::split(1), sbp::split(0)})) << name;
    }
  });
}

}  // namespace
}  // namespace holon::graph
