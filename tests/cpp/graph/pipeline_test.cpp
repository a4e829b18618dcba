// Pipelines: stages on different ranks, run by each schedule, against the same model on one rank.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>

#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/loss.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/sort.h"
#include "holon/optim/update.h"
#include "holon/tensor.h"

namespace holon::graph {
namespace {

constexpr int64_t kRows = 16, kWidth = 6;

// Layers of a width, some to a stage; stage s lies on where[s]. In float64: sums of micro-batches and stages are then
// alike on every machine.
struct Model {
  std::vector<const GlobalSpec*> where;  // the layout of the weights; empty: local
  std::vector<Tensor> weights;           // two per stage

  Model(std::vector<const GlobalSpec*> stages, int n_stages) : where(std::move(stages)) {
    manual_seed(11);
    for (int s = 0; s < n_stages; ++s)
      for (int k = 0; k < 2; ++k) {
        RandnOptions o{.dtype = float64};
        if (!where.empty())
          o.placement = where[static_cast<size_t>(s)]->placement, o.sbp = where[static_cast<size_t>(s)]->nd_sbp;
        weights.push_back(mul(randn({kWidth, kWidth}, o), 0.5).detach());
        weights.back().set_requires_grad();
      }
  }

  Tensor stage(size_t s, Tensor x) const {
    for (size_t k = 0; k < 2; ++k) x = tanh(add(matmul(x, weights[2 * s + k]), x));
    return x;
  }
};

struct Result {
  std::vector<double> losses;
  std::vector<std::vector<double>> weights;
};

Tensor data(int step, const GlobalSpec* spec) {
  RandnOptions o{.dtype = float64};
  o.seed = step;
  if (spec) o.placement = spec->placement, o.sbp = spec->nd_sbp;
  return randn({kRows, kWidth}, o);
}

Result train(const Model& m, size_t stages, const std::vector<const GlobalSpec*>& activations,
             const std::string& schedule, int micro_batches) {
  const GlobalSpec* first = activations.empty() ? nullptr : activations.front();
  std::unique_ptr<Step> step;
  {
    Capture capture;
    capture.set_micro_batches(micro_batches);
    Tensor x = capture.input_like(data(0, first)), y = capture.input_like(data(1, first));
    Tensor h = x;
    for (size_t s = 0; s < stages; ++s) {
      capture.push_scope("stage" + std::to_string(s), static_cast<int>(s));
      if (s > 0 && !activations.empty()) h = h.to_global(activations[s]->placement, activations[s]->nd_sbp);
      h = m.stage(s, h);
      capture.pop_scope();
    }
    if (!activations.empty()) y = y.to_global(activations.back()->placement, activations.back()->nd_sbp);
    Tensor loss = mse_loss(h, y);
    loss.backward();
    capture.add_update(optim::rule_of(optim::SgdOptions{.lr = 0.1, .momentum = 0.9}), m.weights);
    CompileOptions options;
    options.schedule = schedule;
    options.verify = true;
    step = std::make_unique<Step>(capture.finish({&loss, 1}), options);
  }
  Result r;
  for (int i = 0; i < 6; ++i) {
    std::vector<Tensor> in{data(2 * i, first), data(2 * i + 1, first)};
    r.losses.push_back(mean(step->run(in)[0]).item().as_double());
  }
  for (auto& w : m.weights) {
    Tensor whole = w.full();
    r.weights.emplace_back(whole.data<double>().begin(), whole.data<double>().end());
  }
  return r;
}

void expect_alike(const Result& want, const Result& got) {
  for (size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(want.losses[i], got.losses[i], 1e-12 * std::abs(want.losses[i])) << "step " << i;
  for (size_t w = 0; w < want.weights.size(); ++w)
    for (size_t i = 0; i < want.weights[w].size(); ++i)
      ASSERT_NEAR(want.weights[w][i], got.weights[w][i], 1e-12) << "weight " << w;
}

// Stage s on the ranks ranks[s], data-parallel inside.
void check(int world, const std::vector<std::vector<int>>& ranks,
           const std::vector<const char*>& schedules = {"gpipe", "1f1b", "zero_bubble"}) {
  const size_t stages = ranks.size();
  for (int micro_batches : {1, 2, 4, 8}) {
    Result want = train(Model({}, static_cast<int>(stages)), stages, {}, "1f1b", 1);
    for (const char* schedule : schedules) {
      SCOPED_TRACE(fmt::format("{} stages, {} micro-batches, {}", stages, micro_batches, schedule));
      comm::run_ranks(world, [&](int) {
        std::vector<const GlobalSpec*> weights, activations;
        for (auto& r : ranks) {
          Placement p("cpu", std::vector<int64_t>(r.begin(), r.end()));
          weights.push_back(intern_spec(p, sbp::broadcast()));
          activations.push_back(intern_spec(p, sbp::split(0)));
        }
        expect_alike(want,
                     train(Model(weights, static_cast<int>(stages)), stages, activations, schedule, micro_batches));
      });
    }
  }
}

TEST(PipelineSteps, TwoStagesOfOneRank) { check(2, {{0}, {1}}); }
TEST(PipelineSteps, FourStages) { check(4, {{0}, {1}, {2}, {3}}); }
TEST(PipelineSteps, TwoStagesOfTwoRanks) { check(4, {{0, 1}, {2, 3}}); }
TEST(PipelineSteps, StagesOfUnlikeRanks) { check(3, {{0}, {1, 2}}); }
TEST(PipelineSteps, AVOfStages) {
  check(2, {{0}, {1}, {1}, {0}}, {"zero_bubble_v", "dualpipe_v"});
  check(3, {{0}, {1}, {2}, {2}, {1}, {0}}, {"zero_bubble_v", "dualpipe_v"});
  check(4, {{0, 1}, {2, 3}, {2, 3}, {0, 1}}, {"zero_bubble_v", "dualpipe_v"});
}
TEST(PipelineSteps, SeveralStagesOnARank) { check(2, {{0}, {1}, {0}, {1}}); }

}  // namespace
}  // namespace holon::graph
