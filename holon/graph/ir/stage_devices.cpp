#include "holon/graph/ir/stage_devices.h"

#include <algorithm>
#include <numeric>

#include "holon/base/index.h"

namespace holon::graph {

bool changes_placement(const Graph& g, const Node& n) {
  return n.kind == NodeKind::kBoxing && n.in.size() == 1 &&
      g.value(n.in[0]).spec->placement != g.value(n.out[0]).spec->placement;
}

std::vector<std::set<int>> ranks_of_stages(const Graph& g) {
  std::vector<std::set<int>> ranks(to_size(g.stages));
  std::set<std::pair<int, const void*>> seen;
  for (auto& node : g.nodes) {
    if (!per_micro_batch(node.section) || changes_placement(g, node)) continue;
    for (ValueId v : node.out) {
      auto* spec = g.value(v).spec;
      if (!spec || !seen.insert({node.stage, spec->placement.id()}).second) continue;
      for (int r : spec->placement.ranks()) at_index(ranks, node.stage).insert(r);
    }
  }
  return ranks;
}

std::vector<int> devices_of(const std::vector<std::set<int>>& ranks) {
  std::vector<int> device(ranks.size());
  std::iota(device.begin(), device.end(), 0);
  for (size_t a = 0; a < ranks.size(); ++a)
    for (size_t b = 0; b < a; ++b) {
      // A stage of local tensors alone is everybody's.
      bool overlap = ranks[a].empty() || ranks[b].empty() ||
          std::any_of(ranks[a].begin(), ranks[a].end(), [&](int r) { return ranks[b].contains(r); });
      if (!overlap || device[a] == device[b]) continue;
      const int old = std::max(device[a], device[b]), now = std::min(device[a], device[b]);
      std::replace(device.begin(), device.end(), old, now);
    }
  // Counted from 0 in the order of the stages.
  std::vector<int> number(ranks.size(), -1);
  int next = 0;
  for (int& d : device) {
    int& n = at_index(number, d);
    if (n < 0) n = next++;
    d = n;
  }
  return device;
}

}  // namespace holon::graph
