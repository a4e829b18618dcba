// Mixtures of experts: the same on every layout of ranks, compiled and not, with losses of routers and a capacity.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "error_of.h"
#include "holon/boxing/events.h"
#include "holon/graph/nn_graph.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/optim/optimizer.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using checkpoint::Folder;
using comm::run_ranks;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// 8 experts, of which a token has 3, in 2 layers; with all that a loss and a router can have.
Config balanced() {
  return changed(kMixtral,
                 {{"num_local_experts", 8},
                  {"num_experts_per_tok", 3},
                  {"output_router_logits", true},
                  {"router_aux_loss_coef", 0.2},
                  {"router_z_loss_coef", 0.05},
                  {"capacity_factor", 1.1}});
}
std::vector<std::pair<std::string, Config>> mixtures() {
  return {{"mixtral", changed(kMixtral, {{"num_local_experts", 8}})},
          {"balanced", balanced()},
          {"qwen2-moe",
           changed(kLlama,
                   {{"model_type", "qwen2_moe"},
                    {"num_experts", 8},
                    {"num_experts_per_tok", 4},
                    {"moe_intermediate_size", 12},
                    {"shared_expert_intermediate_size", 8},
                    {"output_router_logits", true},
                    {"router_aux_loss_coef", 0.1}})},
          {"deepseek", changed(kDeepseek, {{"capacity_factor", 0.7}})}};
}
std::vector<Parallel> layouts() {
  return {{.ep = 2},
          {.ep = 4},
          {.ep = 8},
          {.dp = 2, .ep = 2},
          {.tp = 2, .ep = 2},
          {.pp = 2, .ep = 2},
          {.dp = 2, .ep = 4},
          {.dp = 4, .ep = 2},
          {.tp = 2, .ep = 4},
          {.dp = 2, .tp = 2, .ep = 2},
          {.dp = 2, .pp = 2, .ep = 2},
          {.tp = 2, .pp = 2, .ep = 2}};
}
std::string text_of(const Parallel& p) {
  return "dp " + std::to_string(p.dp) + " tp " + std::to_string(p.tp) + " pp " + std::to_string(p.pp) + " ep " +
      std::to_string(p.ep);
}

// Three rows, the second one with padding: ranks have unequal rows, and from four ranks on some have none.
Computed compute_masked(const Model& model) {
  std::vector<int64_t> mask(3 * 9, 1);
  for (size_t i = 14; i < 18; ++i) mask[i] = 0;
  const Tensor ids = tokens(3, 9, 23);
  Computed c = compute(model, ids, ids, {.attention_mask = tensor(mask, {3, 9})});
  return c;
}

TEST(SparseMoe, EveryLayoutComputesTheSame) {
  for (auto& mixture : mixtures()) {
    const auto& name = mixture.first;
    const auto& config = mixture.second;
    Computed one;
    run_ranks(1, [&](int) { one = compute_masked(drawn(config)); });
    for (const Parallel& p : layouts())
      run_ranks(static_cast<int>(p.size()), [&](int rank) {
        SCOPED_TRACE(name + " " + text_of(p));
        const Computed found = compute_masked(drawn(config, p));
        if (rank == 0) expect_same(found, one);
      });
  }
}

TEST(SparseMoe, OpsMoveNothingByThemselves) {
  for (auto& mixture : mixtures())
    run_ranks(8, [&](int) {
      const auto& name = mixture.first;
      const auto& config = mixture.second;
      const Model model = drawn(config, {.dp = 2, .tp = 2, .ep = 2});
      const Tensor ids = tokens(3, 9, 23);
      boxing::BoxingPolicyGuard guard("raise");
      RouterLosses losses(0.1, 0.1, ids);
      EXPECT_NO_THROW(model(ids, {.router_losses = &losses})) << name;
      EXPECT_NO_THROW(losses.total(model.layouts().back())) << name;
    });
}

struct Run {
  int64_t rows = 8;
  int micro_batches = 1;
  std::string schedule{};
};
// A step of training, compiled, with the parts of the model as stages of a pipeline.
struct Step : nn::Graph {
  Model model;
  Step(const Model& m, optim::Optimizer& optimizer, const Run& run) : model(m) {
    register_module("model", model);
    add_optimizer(optimizer);
    config.set_gradient_accumulation_steps(run.micro_batches);
    if (!run.schedule.empty()) config.set_schedule(run.schedule);
    if (model.layouts().size() == 1) return;
    for (auto& [part, stage] : model.stages())
      set_stage(part, stage, model.layouts()[static_cast<size_t>(stage)].placement);
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor loss = model.loss(in[0], in[1]);
    loss.backward();
    return {loss};
  }
};

// Of three steps.
std::vector<double> losses_of(const Config& config, const Parallel& p, const Run& run, bool compiled) {
  const Model model = drawn(config, p);
  const Tensor ids = tokens(run.rows, 9, 23);
  optim::SGD sgd(model.parameters(), {.lr = 0.05});
  std::vector<double> losses;
  if (compiled) {
    Step step(model, sgd, run);
    const Layout &first = model.layouts().front(), &last = model.layouts().back();
    for (int i = 0; i < 3; ++i)
      losses.push_back(mean(step({place(ids, first.placement, first.rows), place(ids, last.placement, last.rows)})[0])
                           .item()
                           .as_double());
    return losses;
  }
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    Tensor loss = model.loss(ids, ids);
    loss.backward();
    sgd.step();
    losses.push_back(loss.item().as_double());
  }
  return losses;
}

// Compiled on each layout as eager on one rank.
void expect_follows(const std::string& name, const Config& config, const std::vector<Parallel>& where, const Run& run) {
  std::vector<double> eager;
  run_ranks(1, [&](int) { eager = losses_of(config, {}, run, false); });
  EXPECT_LT(eager.back(), eager.front()) << name;
  for (const Parallel& p : where)
    run_ranks(static_cast<int>(p.size()), [&](int) {
      const auto found = losses_of(config, p, run, true);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_NEAR(found[i], eager[i], 2e-5 * eager[i]) << name << " " << text_of(p) << " " << run.schedule;
    });
}

// 3 rows: unequal ones, and ranks without any.
TEST(SparseMoe, CompiledStepsAreThoseOfOneRank) {
  for (auto& [name, config] : mixtures())
    for (int64_t rows : {8, 3})
      expect_follows(
          name, config,
          {{.ep = 2}, {.dp = 2, .ep = 2}, {.pp = 2, .ep = 2}, {.dp = 2, .pp = 2, .ep = 2}, {.tp = 2, .pp = 2, .ep = 2}},
          {.rows = rows});
}

// In a pipeline with several micro-batches, each with its own choices. Without losses of routers, whose means are those
// of a micro-batch, the steps are those of the whole batch.
TEST(SparseMoe, PipelinesOfMicroBatches) {
  for (auto& [name, config] : mixtures())
    if (!config.flag("output_router_logits", false))
      for (std::string schedule : {"gpipe", "1f1b", "zero_bubble"})
        expect_follows(name, config, {{.pp = 2, .ep = 2}, {.dp = 2, .pp = 2, .ep = 2}},
                       {.rows = 8, .micro_batches = 2, .schedule = schedule});
}

// With losses of routers: a step is that of the micro-batches' mean.
TEST(SparseMoe, LossesOfRoutersAreThoseOfMicroBatches) {
  const Config config = balanced();
  double halves = 0;
  run_ranks(1, [&](int) {
    const Model model = drawn(config);
    const Tensor ids = tokens(8, 9, 23);
    // Each of two ranks has four of the rows, of which two are in a micro-batch.
    for (int64_t first : {0, 2}) {
      const Tensor half = cat({slice(ids, 0, first, first + 2), slice(ids, 0, first + 4, first + 6)}, 0);
      halves += model.loss(half, half).item().as_double() / 2;
    }
  });
  run_ranks(4, [&](int) {
    const auto found = losses_of(config, {.pp = 2, .ep = 2}, {.rows = 8, .micro_batches = 2}, true);
    EXPECT_NEAR(found[0], halves, 1e-5 * halves);
  });
}

TEST(SparseMoe, WhatDoesNotFitIsAnErrorBeforeAnyStep) {
  auto error = [](std::initializer_list<std::pair<const char*, checkpoint::Value>> changes) {
    return value_error_of([&] { from_config(changed(kMixtral, changes)); });
  };
  run_ranks(1, [&](int) {
    EXPECT_TRUE(contains(error({{"num_experts_per_tok", 5}}), "num_experts_per_tok is 5 of 4 experts"));
    EXPECT_TRUE(contains(error({{"capacity_factor", -1.0}}), "capacity_factor is -1"));
    EXPECT_TRUE(contains(error({{"router_z_loss_coef", -0.5}}), "router_z_loss_coef is -0.5"));
    EXPECT_TRUE(contains(error({{"output_router_logits", true}, {"router_aux_loss_coef", -1.0}}),
                         "router_aux_loss_coef is -1"));
    EXPECT_TRUE(contains(value_error_of([&] {
                           from_config(changed(kDeepseek, {{"output_router_logits", true}}));
                         }),
                         "e_score_correction"));
  });
  run_ranks(3, [](int) {
    EXPECT_TRUE(contains(value_error_of([] { from_config(Config(kMixtral), {.ep = 3}); }),
                         "ep 3 does not divide the 4 experts"));
  });
}

// A capacity that suffices for all tokens drops none; one of a single token leaves the others with what is not of
// experts.
TEST(SparseMoe, CapacityDropsWhatIsOver) {
  run_ranks(1, [](int) {
    const Tensor ids = tokens(2, 8, 23);
    const Config config(kMixtral);
    auto logits = [&](double factor) {
      NoGradGuard guard;
      return to_vector<float>(drawn(changed(kMixtral, {{"capacity_factor", factor}}))(ids));
    };
    const auto dropless = logits(0), wide = logits(2), narrow = logits(0.5), tiny = logits(1e-6);
    EXPECT_EQ(dropless, wide);  // 2 * 8 tokens * 2 / 4 experts: 8 for each
    EXPECT_NE(dropless, narrow);
    EXPECT_NE(narrow, tiny);
    // The first token of a row is dropped by nobody: its first layer is the same, and causal attention sees no other.
    const auto first = [](const Values& all) { return Values(all.begin(), all.begin() + 23); };
    EXPECT_LT(difference(first(tiny), first(dropless)), 1e-5);
    EXPECT_GT(difference(tiny, dropless), 1e-3);
  });
}

}  // namespace
}  // namespace holon::models
