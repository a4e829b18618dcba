// What the trace of a pipeline shows: the tasks of the schedule's table, in its order, with their instructions inside,
// and waits apart from work.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "holon/base/fmt.h"
#include "holon/base/trace.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/program/program.h"
#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/linalg.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/optim/update.h"
#include "holon/tensor.h"

namespace holon::graph {
namespace {

using nlohmann::json;

std::unique_ptr<Step> pipeline(const std::vector<int>& rank_of_stage, const std::string& schedule, int micro_batches) {
  Capture capture;
  capture.set_micro_batches(micro_batches);
  std::vector<Tensor> weights;
  auto spec_of = [&](size_t s) { return intern_spec(Placement("cpu", {rank_of_stage[s]}), sbp::broadcast()); };
  RandnOptions o;
  o.placement = spec_of(0)->placement;
  o.sbp = spec_of(0)->nd_sbp;
  Tensor h = capture.input({2, 4}, float32, spec_of(0), {});
  for (size_t s = 0; s < rank_of_stage.size(); ++s) {
    o.placement = spec_of(s)->placement;
    TracerPause untraced;
    weights.push_back(randn({4, 4}, o).detach());
    weights.back().set_requires_grad();
  }
  for (size_t s = 0; s < rank_of_stage.size(); ++s) {
    capture.push_scope(fmt::format("net.stage{}", s), static_cast<int>(s));
    h = tanh(matmul(h.to_global(spec_of(s)->placement, spec_of(s)->nd_sbp), weights[s]));
    capture.pop_scope();
  }
  Tensor loss = mean(h);
  loss.backward();
  capture.add_update(optim::rule_of(optim::SgdOptions{.lr = 0.1}), weights);
  CompileOptions options;
  options.schedule = schedule;
  return std::make_unique<Step>(capture.finish({&loss, 1}), options);
}

struct Traced {
  std::vector<std::vector<std::string>> tables;  // of each rank: its tasks by the schedule
  std::map<int, std::vector<json>> slices;       // of each rank, by time
};

Traced trace(const std::vector<int>& rank_of_stage, int world, const std::string& schedule, int micro_batches) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("holon_bubble_{}_{}.json", getpid(), schedule);
  Traced t;
  t.tables.resize(static_cast<size_t>(world));
  comm::run_ranks(world, [&](int rank) {
    auto step = pipeline(rank_of_stage, schedule, micro_batches);
    for (auto& range : step->program().tasks) t.tables[static_cast<size_t>(rank)].push_back(range.task.str());
    RandnOptions o;
    o.placement = Placement("cpu", {rank_of_stage[0]});
    o.sbp = sbp::broadcast();
    std::vector<Tensor> in{randn({2 * micro_batches, 4}, o)};
    step->run(in);
    std::vector<int> all;
    for (int r = 0; r < world; ++r) all.push_back(r);
    auto& group = comm::communicator(all);
    group.barrier();
    if (rank == 0) tracing::start(path.string());
    group.barrier();
    step->run(in);
    group.barrier();
  });
  tracing::stop();
  const json events = json::parse(std::ifstream(path))["traceEvents"];
  for (auto& e : events)
    if (e["ph"] == "X") t.slices[e["pid"].get<int>()].push_back(e);
  for (auto& [rank, list] : t.slices)
    std::stable_sort(list.begin(), list.end(),
                     [](const json& a, const json& b) { return a["ts"].get<double>() < b["ts"].get<double>(); });
  std::filesystem::remove(path);
  return t;
}

double end_of(const json& e) { return e["ts"].get<double>() + e["dur"].get<double>(); }

void check_order(const std::vector<int>& rank_of_stage, int world, const std::string& schedule, int micro_batches) {
  SCOPED_TRACE(fmt::format("{}, {} micro-batches", schedule, micro_batches));
  const int stages = static_cast<int>(rank_of_stage.size());
  const Schedule table = make_schedule(schedule, rank_of_stage, micro_batches);
  const Traced t = trace(rank_of_stage, world, schedule, micro_batches);
  for (int rank = 0; rank < world; ++rank) {
    std::vector<std::string> want, got;
    for (auto& task : table.tasks[static_cast<size_t>(rank)]) want.push_back(task.str());
    EXPECT_EQ(t.tables[static_cast<size_t>(rank)], want) << "rank " << rank;
    std::vector<const json*> tasks;
    int receives = 0, works = 0;
    for (auto& e : t.slices.at(rank)) {
      if (e["cat"] == "task") {
        got.push_back(e["name"]);
        tasks.push_back(&e);
        EXPECT_EQ(rank_of_stage[e["args"]["stage"].get<size_t>()], rank);
      }
      if (e["cat"] != "graph" && e["cat"] != "graph wait") continue;
      const std::string name = e["name"];
      const bool waits = name.ends_with("receive") || name.ends_with("release") || name.ends_with("wait");
      EXPECT_EQ(e["cat"] == "graph wait", waits) << e;
      receives += name.ends_with("receive");
      if (!name.starts_with("net.stage") || waits || !e["args"].contains("section")) continue;
      const std::string section = e["args"]["section"];
      if (section != "forward" && section != "backward" && section != "weight") continue;
      if (name.ends_with("send")) continue;
      ++works;
      // Work belongs to the task around it.
      const auto in =
          std::find_if(tasks.rbegin(), tasks.rend(), [&](const json* task) { return (*task)["ts"] <= e["ts"]; });
      ASSERT_NE(in, tasks.rend()) << e;
      EXPECT_LE(end_of(e), end_of(**in) + 1e-3) << e;
      EXPECT_EQ((**in)["args"]["stage"], e["args"]["stage"]) << e;
      EXPECT_EQ((**in)["args"]["micro_batch"], e["args"]["micro_batch"]) << e;
      EXPECT_EQ((**in)["args"]["section"], section) << e;
    }
    EXPECT_EQ(got, want) << "rank " << rank;
    // One value comes in from each neighbour, for each micro-batch: activations from before, gradients from behind.
    int borders = 0;
    for (int s = 0; s < stages; ++s)
      if (rank_of_stage[static_cast<size_t>(s)] == rank)
        borders += (s > 0 && rank_of_stage[static_cast<size_t>(s) - 1] != rank) +
            (s + 1 < stages && rank_of_stage[static_cast<size_t>(s) + 1] != rank);
    EXPECT_EQ(receives, borders * micro_batches) << "rank " << rank;
    EXPECT_GT(works, 0);
  }
}

TEST(PipelineTrace, TasksRunInTheOrderOfTheTable) {
  for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"})
    for (int micro_batches : {2, 5}) check_order({0, 1, 2, 3}, 4, schedule, micro_batches);
}

TEST(PipelineTrace, InterleavedStages) { check_order({0, 1, 0, 1}, 2, "interleaved", 4); }

TEST(PipelineTrace, StagesOnAV) {
  for (const char* schedule : {"zero_bubble_v", "dualpipe_v"})
    for (int micro_batches : {3, 4}) check_order({0, 1, 1, 0}, 2, schedule, micro_batches);
}

// Nor after it: steps outside start() and stop() leave no event in the file.
TEST(PipelineTrace, NothingIsWrittenWhileItIsOff) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("holon_bubble_{}_off.json", getpid());
  comm::run_ranks(2, [&](int rank) {
    auto step = pipeline({0, 1}, "1f1b", 2);
    RandnOptions o;
    o.placement = Placement("cpu", {0});
    o.sbp = sbp::broadcast();
    std::vector<Tensor> in{randn({4, 4}, o)};
    EXPECT_FALSE(tracing::on());
    step->run(in);
    comm::communicator(std::vector<int>{0, 1}).barrier();
    if (rank == 0) {
      tracing::start(path.string());
      tracing::stop();
    }
    comm::communicator(std::vector<int>{0, 1}).barrier();
    EXPECT_FALSE(tracing::on());
    step->run(in);
  });
  if (std::ifstream file(path); file) {
    for (auto& e : json::parse(file)["traceEvents"]) EXPECT_NE(e["ph"], "X") << e;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace holon::graph
