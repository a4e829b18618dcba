// Pictures of graphs: the same on all ranks, with all that is to be seen, and numbers that add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "holon/graph/capture/blocks.h"
#include "holon/graph/cost/node_cost.h"
#include "holon/graph/picture/memory_use.h"
#include "holon/graph/picture/outline.h"
#include "holon/graph/picture/plan.h"
#include "holon/graph/picture/timetable.h"
#include "holon/graph/program/program.h"
#include "holon/internal_ops/attention.h"
#include "small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

TEST(PlanPicture, FoldsModulesThatAreAlike) {
  const Graph g = mlp(local(), {.blocks = 7}).g;
  const Outline whole = outline(g, 0, false), folded = outline(g, 0, true);
  EXPECT_LT(folded.items(100), whole.items(100));
  auto nodes = [](const Outline& o) {
    auto n = o.nodes();
    std::sort(n.begin(), n.end());
    return n;
  };
  EXPECT_EQ(nodes(whole), nodes(folded));
  size_t of_stage = 0;
  for (auto& n : g.nodes) of_stage += n.section == Section::kForward || n.section == Section::kBackward;
  EXPECT_EQ(nodes(whole).size(), of_stage);
  EXPECT_NE(plan_svg(g).find("\u00d7"), std::string::npos);
}

TEST(PlanPicture, ShowsEveryBoxingWithItsBytes) {
  comm::run_ranks(2, [](int) {
    Graph g = mlp(data_parallel(), {.blocks = 2}).g;
    run_passes(g, {});
    size_t boxings = 0;
    for (auto& n : g.nodes) boxings += n.kind == NodeKind::kBoxing;
    ASSERT_GT(boxings, 0u);
    const std::string svg = plan_svg(g, {.title = "a <title>", .fold = false});
    EXPECT_EQ(svg, plan_svg(g, {.title = "a <title>", .fold = false}));
    EXPECT_NE(svg.find("a &lt;title&gt;"), std::string::npos);
    EXPECT_NE(svg.find("all_reduce"), std::string::npos);
    EXPECT_GE(count(svg, "bytes read by a rank at most"), 1u);
  });
}

TEST(PlanPicture, IsTheSameOnAllRanks) {
  std::vector<std::string> pictures(4);
  comm::run_ranks(4, [&](int rank) {
    Graph g = mlp(grid(), {.blocks = 3}).g;
    run_passes(g, {});
    pictures[static_cast<size_t>(rank)] = plan_svg(g);
  });
  for (auto& p : pictures) EXPECT_EQ(p, pictures[0]);
}

TEST(PlanPicture, NothingIsShownOfAnEmptyGraph) { EXPECT_NE(plan_svg(Graph{}).find("0 nodes"), std::string::npos); }

TEST(MemoryPicture, AddsUpToThePlan) {
  for (int micro_batches : {1, 4}) {
    Captured c = mlp(local(), {.blocks = 3, .rows = 16, .micro_batches = micro_batches});
    Step step(c.g, {});
    const MemoryUse use = memory_use(step);
    ASSERT_EQ(use.at.size(), step.program().instructions.size());
    const int64_t most = *std::max_element(use.arena.begin(), use.arena.end());
    EXPECT_LE(most, static_cast<int64_t>(step.program().memory.peak_bytes));  // which counts in lines of 64 bytes
    EXPECT_GE(most, static_cast<int64_t>(step.program().memory.peak_bytes) * 6 / 10);
    EXPECT_EQ(use.tasks.size(), static_cast<size_t>(2 * micro_batches));
    int64_t parameters = 0;
    for (auto& p : c.parameters) parameters += static_cast<int64_t>(p.array().nbytes());
    for (auto& at : use.at) {
      EXPECT_EQ(at[static_cast<size_t>(MemoryKind::kParameters)], parameters);
      EXPECT_EQ(at[static_cast<size_t>(MemoryKind::kStates)], 2 * parameters);  // Adam, before its first step
      for (int64_t bytes : at) EXPECT_GE(bytes, 0);
    }
    step.run(c.inputs);
    EXPECT_EQ(memory_use(step).at, use.at);
    // Nothing of forward is kept when backward is done.
    EXPECT_EQ(use.at.back()[static_cast<size_t>(MemoryKind::kActivations)], 0);
    EXPECT_GT(use.most()[static_cast<size_t>(MemoryKind::kActivations)], 0);
    EXPECT_GT(use.most()[static_cast<size_t>(MemoryKind::kGradients)], 0);
    EXPECT_NE(memory_svg({&use, 1}).find("peak"), std::string::npos);
  }
}

TEST(MemoryPicture, OfAllRanks) {
  comm::run_ranks(3, [](int rank) {
    Captured c = mlp(data_parallel({0, 1, 2}), {.rows = 6});
    Step step(c.g, {});
    const auto uses = memory_use_of_all(step);
    ASSERT_EQ(uses.size(), 3u);
    for (int r = 0; r < 3; ++r) EXPECT_EQ(uses[static_cast<size_t>(r)].rank, r);
    EXPECT_EQ(uses[static_cast<size_t>(rank)].at, memory_use(step).at);
    EXPECT_EQ(count(memory_text(uses), "rank "), 3u);
  });
}

TEST(MemoryPicture, OfNoRank) { EXPECT_THROW(memory_svg({}), Error); }

TEST(Work, OfProducts) {
  const Graph g = mlp(local(), {.blocks = 1, .rows = 8, .width = 6, .hidden = 10}).g;
  double forward = 0;
  for (auto& n : g.nodes)
    if (n.section == Section::kForward) forward += flops(g, n);
  EXPECT_EQ(forward, 2 * (2 * 8 * 6 * 10));
  const Costs c = estimate_costs(g);
  EXPECT_GT(c.forward[0], 0);
  EXPECT_GT(c.backward[0] + c.weight[0], c.forward[0]);
  comm::run_ranks(2, [](int) {
    const Graph half = mlp(data_parallel(), {.blocks = 1, .rows = 8, .width = 6, .hidden = 10}).g;
    double forward = 0;
    for (auto& n : half.nodes)
      if (n.section == Section::kForward) forward += flops(half, n);
    EXPECT_EQ(forward, 2 * 8 * 6 * 10);
  });
}

// Each rank's queries see the keys of all.
TEST(Work, OfASplitSequence) {
  comm::run_ranks(2, [](int) {
    auto work = [](Sbp sequence) {
      const Layout l = data_parallel();
      Capture capture;
      const Tensor q = capture.input_like(random(l, {1, 2, 8, 4}, NdSbp{sequence}, 1));
      const std::vector<Tensor> outputs{attention_flash(q, q, q, {}, {}, false, 1.0)[0]};
      const Graph g = capture.finish(outputs);
      double all = 0;
      for (auto& n : g.nodes) all += flops(g, n);
      return all;
    };
    EXPECT_GT(work(sbp::broadcast()), 0);
    EXPECT_EQ(2 * work(sbp::split(2)), work(sbp::broadcast()));
  });
}

TEST(Chain, CutsBlocksByCost) {
  const Graph g = mlp(local(), {.blocks = 5, .rows = 8, .width = 6}).g;
  std::vector<std::string> paths;
  for (int b = 5; b-- > 0;) paths.push_back("model.block" + std::to_string(b));
  paths.push_back("model.block");  // nobody's, and no prefix of a path
  const Chain chain = cut_chain(g, paths, 2);
  ASSERT_EQ(chain.blocks.size(), 5u);
  for (size_t b = 0; b < 5; ++b) EXPECT_EQ(chain.blocks[b], "model.block" + std::to_string(b));
  for (int64_t bytes : chain.bytes) EXPECT_EQ(bytes, 8 * 6 * 4);
  EXPECT_EQ(chain.first[0], 0);
  EXPECT_TRUE(chain.first[1] == 2 || chain.first[1] == 3);
  EXPECT_EQ(chain.stage_of(4), 1);
  EXPECT_EQ(chain.input_readers, (std::vector<std::vector<int>>{{0}, {4}}));
  EXPECT_THROW(cut_chain(g, paths, 6), Error);
}

}  // namespace
}  // namespace holon::graph
