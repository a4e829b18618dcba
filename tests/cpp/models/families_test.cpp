// Every family computes the same on every layout, and after it was saved on another one.
#include <gtest/gtest.h>

#include "checkpoint/folder.h"
#include "holon/boxing/events.h"
#include "holon/graph/nn_graph.h"
#include "holon/ops/reduce.h"
#include "holon/optim/optimizer.h"
#include "models/small_models.h"

namespace holon::models {
namespace {

using checkpoint::Folder;
using comm::run_ranks;

class EachModel : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, EachModel,
                         testing::Values(kLlama, kMixtral, kDeepseek, kGpt2, kBert, kT5, kVit, kResnet));

TEST_P(EachModel, EveryLayoutComputesTheSame) {
  Folder folder;
  const Computed one = save_one(folder.path, GetParam());
  EXPECT_GT(one.logits.size(), 0u);
  std::vector<Parallel> layouts{{.dp = 2}, {.tp = 2}, {.pp = 2}, {.tp = 4}, {.dp = 2, .tp = 2}, {.tp = 2, .pp = 2}};
  if (GetParam() == kMixtral || GetParam() == kDeepseek)
    for (Parallel p : {Parallel{.ep = 2}, Parallel{.tp = 2, .ep = 2}, Parallel{.dp = 2, .pp = 2, .ep = 2}})
      layouts.push_back(p);
  for (const Parallel& p : layouts)
    run_ranks(static_cast<int>(p.size()), [&](int rank) {
      const Computed found = compute(from_pretrained(folder.path, p));
      if (rank == 0) expect_same(found, one);
    });
}

// Nothing is moved but where the model says so: an op that had to move something would raise.
TEST_P(EachModel, OpsMoveNothingByThemselves) {
  run_ranks(8, [](int) {
    Model model = from_config(Config(GetParam()), {.dp = 2, .tp = 2, .pp = 2});
    model.eval();
    const Sample sample = sample_of(model.config());
    boxing::BoxingPolicyGuard guard("raise");
    const Layout& first = model.layouts().front();
    for (const Tensor& given : {sample.x, place(sample.x, first.placement, first.rows)}) {
      const Tensor logits = model(given, sample.inputs);
      EXPECT_EQ(logits.nd_sbp(), (NdSbp{sbp::split(0), sbp::split(logits.ndim() - 1)}));
      EXPECT_EQ(logits.placement(), model.layouts().back().placement);
    }
  });
}

TEST_P(EachModel, SavedOnOneLayoutAndLoadedOnAnother) {
  Folder folder, again;
  const Computed one = save_one(folder.path, GetParam());
  run_ranks(4, [&](int) { from_pretrained(folder.path, {.dp = 2, .tp = 2}).save_pretrained(again.path); });
  run_ranks(2, [&](int rank) {
    const Computed found = compute(from_pretrained(again.path, {.pp = 2}));
    if (rank == 0) expect_same(found, one);
  });
  // The configuration is kept, and says what the dtype is.
  const Config before = Config::read(folder.path), after = Config::read(again.path);
  EXPECT_EQ(before.json(), after.json());
  EXPECT_EQ(after.text("dtype"), "float32");
}

// A step of training, compiled, with the parts of the model as stages of a pipeline.
struct Step : nn::Graph {
  Model model;
  Step(const Model& m, optim::Optimizer& optimizer) : model(m) {
    register_module("model", model);
    add_optimizer(optimizer);
    if (model.layouts().size() == 1) return;
    for (auto& [part, stage] : model.stages())
      set_stage(part, stage, model.layouts()[static_cast<size_t>(stage)].placement);
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor loss = model.loss(in[0], in[1], in.size() > 2 ? Inputs{.decoder_input_ids = in[2]} : Inputs());
    loss.backward();
    return {loss};
  }
};

TEST_P(EachModel, CompiledStepsOfAPipelineAreThoseOfOneRank) {
  Folder folder;
  save_one(folder.path, GetParam());
  std::vector<double> eager;
  run_ranks(1, [&](int) {
    const Model model = from_pretrained(folder.path);
    const Sample sample = sample_of(model.config());
    optim::SGD sgd(model.parameters(), {.lr = 0.05});
    for (int i = 0; i < 3; ++i) {
      sgd.zero_grad();
      Tensor loss = model.loss(sample.x, sample.labels, sample.inputs);
      loss.backward();
      sgd.step();
      eager.push_back(loss.item().as_double());
    }
  });
  EXPECT_LT(eager.back(), eager.front());
  run_ranks(4, [&](int) {
    const Model model = from_pretrained(folder.path, {.tp = 2, .pp = 2});
    const Sample sample = sample_of(model.config());
    const Layout &first = model.layouts().front(), &last = model.layouts().back();
    optim::SGD sgd(model.parameters(), {.lr = 0.05});
    Step step(model, sgd);
    std::vector<Tensor> given{place(sample.x, first.placement, first.rows),
                              place(sample.labels, last.placement, last.rows)};
    if (sample.inputs.decoder_input_ids.defined())
      given.push_back(place(sample.inputs.decoder_input_ids, first.placement, first.rows));
    for (double wanted : eager) EXPECT_NEAR(mean(step(given)[0]).item().as_double(), wanted, 1e-5 * wanted);
  });
}

}  // namespace
}  // namespace holon::models
