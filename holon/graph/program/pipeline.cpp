#include "holon/graph/program/pipeline.h"

#include <algorithm>
#include <array>
#include <set>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/ir/stage_devices.h"
#include "holon/graph/schedule/scheme.h"

namespace holon::graph {

namespace {

Phase phase_of(Section s) {
  return s == Section::kForward ? Phase::kForward : s == Section::kWeight ? Phase::kWeight : Phase::kBackward;
}

}  // namespace

Section section_of(Phase phase) {
  return phase == Phase::kForward ? Section::kForward
      : phase == Phase::kBackward ? Section::kBackward
                                  : Section::kWeight;
}

Schedule schedule_of(const Graph& g, const std::string& name) {
  bool training = false, split = false;
  for (auto& n : g.nodes) {
    split |= n.section == Section::kWeight;
    training |= split || n.section == Section::kBackward;
  }
  if (g.stages <= 1) return sequential(1, g.micro_batches, training);
  const auto scheme = name == kAutoSchedule ? automatic_scheme(split) : find_scheme("config", name);
  return make_schedule("config", *scheme, devices_of(ranks_of_stages(g)), g.micro_batches, training);
}

Pipeline::Pipeline(const Graph& g, Schedule schedule, int rank)
    : schedule_(std::move(schedule)), crosses_(g.nodes.size(), false) {
  if (g.stages <= 1) {
    device_ = 0;
    tasks_ = schedule_.tasks[0];
    return;
  }
  edge_of_.resize(g.nodes.size());
  std::vector<NodeId> made_by = producers(g);
  std::vector<int> reader(g.values.size(), -1);  // the first that is not a crossing itself
  for (size_t n = g.nodes.size(); n-- > 0;)
    for (ValueId v : g.nodes[n].in)
      if (v != kNoValue) at_index(reader, v) = static_cast<int>(n);
  variant_of_ = g.variant_of;
  std::set<std::array<int, 5>> known;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const Node& node = g.nodes[n];
    if (!per_micro_batch(node.section) || !changes_placement(g, node)) continue;
    crosses_[n] = true;
    Edge e{node.stage, node.stage, phase_of(node.section), phase_of(node.section), node.variant};
    if (NodeId by = at_index(made_by, node.in[0]); by >= 0 && per_micro_batch(at_index(g.nodes, by).section)) {
      e.from_stage = at_index(g.nodes, by).stage;
      e.from = phase_of(at_index(g.nodes, by).section);
    }
    if (int by = at_index(reader, node.out[0]); by >= 0 && per_micro_batch(at_index(g.nodes, by).section)) {
      e.to_stage = at_index(g.nodes, by).stage;
      e.to = phase_of(at_index(g.nodes, by).section);
    }
    edge_of_[n] = e;
    if (known.insert({e.from_stage, e.to_stage, static_cast<int>(e.from), static_cast<int>(e.to), e.variant}).second)
      edges_.push_back(e);
  }
  const std::vector<std::set<int>> ranks = ranks_of_stages(g);
  for (size_t s = 0; s < ranks.size(); ++s)
    if (ranks[s].empty() || ranks[s].contains(rank)) device_ = schedule_.device_of_stage[s];
  if (device_ >= 0) tasks_ = at_index(schedule_.tasks, device_);
  place_.resize(schedule_.tasks.size());
  for (size_t d = 0; d < place_.size(); ++d) {
    place_[d].assign(to_size(g.stages * g.micro_batches * 3), -1);
    for (size_t i = 0; i < schedule_.tasks[d].size(); ++i) {
      const Task& t = schedule_.tasks[d][i];
      at_index(place_[d], (t.stage * g.micro_batches + t.micro_batch) * 3 + static_cast<int>(t.phase)) =
          static_cast<int>(i);
    }
  }
}

int Pipeline::place_of(int device, const Task& t) const {
  return at_index(at_index(place_, device),
                  (t.stage * schedule_.micro_batches + t.micro_batch) * 3 + static_cast<int>(t.phase));
}

int Pipeline::received_after(NodeId crossing, int micro_batch, int sent) const {
  const Edge& e = at_index(edge_of_, crossing);
  const int receiver = at_index(schedule_.device_of_stage, e.to_stage);
  if (receiver == device_) return -1;
  const int received = place_of(receiver, {e.to_stage, micro_batch, e.to});
  for (size_t x = to_size(sent) + 1; x < tasks_.size(); ++x)
    for (auto& back : edges_) {
      if (back.to_stage != tasks_[x].stage || back.to != tasks_[x].phase) continue;
      if (!variant_of_.empty() && back.variant != at_index(variant_of_, tasks_[x].micro_batch)) continue;
      if (at_index(schedule_.device_of_stage, back.from_stage) != receiver) continue;
      if (place_of(receiver, {back.from_stage, tasks_[x].micro_batch, back.from}) >= received)
        return static_cast<int>(x);
    }
  return -1;
}

}  // namespace holon::graph
