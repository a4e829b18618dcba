#include "holon/graph/ir/graph.h"

#include "holon/base/index.h"
#include "holon/graph/ir/node_kind.h"

namespace holon::graph {

const char* name(Section section) {
  const char* names[] = {"once before", "forward", "backward", "weight", "once after"};
  return names[static_cast<int>(section)];
}

std::vector<NodeId> producers(const Graph& g) {
  std::vector<NodeId> made_by(g.values.size(), -1);
  for (size_t n = 0; n < g.nodes.size(); ++n)
    for (ValueId v : g.nodes[n].out) at_index(made_by, v) = static_cast<NodeId>(n);
  return made_by;
}

std::vector<int32_t> use_counts(const Graph& g) {
  std::vector<int32_t> uses(g.values.size(), 0);
  for (auto& n : g.nodes)
    for (ValueId v : n.in)
      if (v != kNoValue) ++at_index(uses, v);
  for (int f = 0; f < g.variants(); ++f)
    for (ValueId v : g.outputs_of(f)) ++at_index(uses, v);
  return uses;
}

bool is_pure(const Node& n) { return !traits(n).effects; }

std::vector<bool> after_gradients(const Graph& g) {
  std::vector<bool> values(g.values.size(), false), nodes(g.nodes.size(), false);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    bool after =
        traits(n).gradients || (n.kind == NodeKind::kAssign && n.section == Section::kOnceAfter && !g.clips.empty());
    for (ValueId v : n.in) after = after || (v != kNoValue && at_index(values, v));
    for (ValueId v : n.out) at_index(values, v) = after;
    nodes[i] = after;
  }
  return nodes;
}

}  // namespace holon::graph
