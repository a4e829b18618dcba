// Stages by cost: config.set_stages(n).
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/capture/blocks.h"
#include "holon/graph/graph_core.h"

namespace holon::nn {

namespace {

// Children by number and nothing else: a Sequential or a ModuleList.
bool is_list(const std::vector<std::pair<std::string, Module>>& children) {
  for (size_t i = 0; i < children.size(); ++i)
    if (children[i].first != std::to_string(i)) return false;
  return !children.empty();
}

void add_blocks(const std::string& path, const Module& module, bool root,
                std::vector<std::pair<std::string, Module>>* blocks) {
  auto children = module.named_children();
  if (children.empty() || (!root && !is_list(children))) {
    blocks->emplace_back(path, module);
    return;
  }
  for (auto& [name, child] : children) add_blocks(path + "." + name, child, false, blocks);
}

std::vector<Placement> split_ranks(const std::string& graph, const StateDict& tensors, int stages) {
  const Placement* at = nullptr;
  for (auto& [path, t] : tensors) {
    if (t.is_local()) continue;
    if (at && !(t.placement() == *at))
      fail_value("config.set_stages of {}: parameters are on {} and on {}. Give one placement for each stage.", graph,
                 *at, t.placement());
    at = &t.spec()->placement;
  }
  if (!at && Context::current().world_size() == 1) return {};
  if (!at)
    fail_value("config.set_stages of {}: its parameters are local, so each rank has a separate model. Make them global "
               "first, by to_global(placement over all ranks, sbp::broadcast()), or give placements.",
               graph);
  Dims hierarchy = at->hierarchy();
  if (hierarchy[0] % stages)
    fail_value(
        "config.set_stages of {}: {} stages do not divide the first axis of {}. Give one placement for each stage.",
        graph, stages, *at);
  hierarchy[0] /= stages;
  std::vector<Placement> parts;
  const size_t each = at->ranks().size() / to_size(stages);
  for (size_t s = 0; s < to_size(stages); ++s) {
    auto first = at->ranks().begin() + static_cast<std::ptrdiff_t>(s * each);
    parts.emplace_back(holon::name(at->device_type()), hierarchy,
                       std::vector<int64_t>(first, first + static_cast<std::ptrdiff_t>(each)));
  }
  return parts;
}

}  // namespace

void GraphCore::cut_into_stages(std::span<const Tensor> inputs) {
  std::vector<std::pair<std::string, Module>> blocks;
  StateDict tensors;
  for (auto& [name, root] : modules()) {
    block_of(root, "config.set_stages");
    add_blocks(name, root, true, &blocks);
    for (auto& list : {root.named_parameters(true), root.named_buffers()})
      for (auto& [path, t] : list) tensors.emplace_back(name + "." + path, t);
  }
  for (auto& [module, b] : blocks_)
    if (b.stage >= 0) return;
  std::vector<std::string> paths;
  for (auto& [path, m] : blocks) paths.push_back(path);
  const graph::Graph g = capture(inputs);
  const graph::Chain chain = graph::cut_chain(g, paths, config.stages());
  const std::vector<Placement> placements =
      config.placements().empty() ? split_ranks(name(), tensors, config.stages()) : config.placements();

  std::map<const TensorImpl*, std::set<int>> readers;
  for (size_t e = 0; e < g.externals.size(); ++e)
    for (int block : chain.external_readers[e]) readers[g.externals[e].tensor.impl()].insert(chain.stage_of(block));
  if (!placements.empty())
    for (auto& [path, t] : tensors)
      if (auto it = readers.find(t.impl()); it != readers.end() && it->second.size() > 1)
        fail_value("config.set_stages of {}: {} is read in stages {} and {} of the cut, and a parameter is in one "
                   "stage only. Assign stages to modules by set_stage(), and move the parameter to the later stage by "
                   "to_global() in build().",
                   name(), path, *it->second.begin(), *it->second.rbegin());
  for (size_t b = 0; b < chain.blocks.size(); ++b) {
    auto it = std::find_if(blocks.begin(), blocks.end(), [&](auto& block) { return block.first == chain.blocks[b]; });
    const int stage = chain.stage_of(static_cast<int>(b));
    set_stage(it->second, stage, placements.empty() ? nullptr : &at_index(placements, stage));
  }
  if (placements.empty()) return;
  for (int s = 0; s < config.stages(); ++s) {
    const Placement& to = at_index(placements, s);
    const NdSbp whole = NdSbp::filled(static_cast<int>(to.hierarchy().size()), sbp::broadcast());
    for (auto& [path, root] : modules())
      root.to_global(to, [&](const std::string&, const Tensor& t) {
        auto it = readers.find(t.impl());
        if (it == readers.end() || *it->second.begin() != s) return NdSbp();
        return t.is_global() ? t.nd_sbp() : whole;
      });
  }
  for (auto& reading : chain.input_readers) {
    input_placements_.push_back(nullptr);
    if (reading.empty()) continue;
    const Placement& to = at_index(placements, chain.stage_of(reading[0]));
    input_placements_.back() = placements_.emplace_back(std::make_shared<Placement>(to)).get();
  }
}

}  // namespace holon::nn
