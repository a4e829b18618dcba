#include "holon/graph/ir/readers.h"

#include <algorithm>

#include "holon/base/index.h"
#include "holon/graph/ir/node_kind.h"

namespace holon::graph {

Readers::Readers(const Graph& g)
    : producer_(producers(g)),
      begin_(g.values.size() + 2, 0),
      output_(g.values.size(), false),
      external_(g.values.size(), -1),
      writers_(g.externals.size()) {
  // begin_[v + 2] counts, then is where v's readers begin, and at last, shifted by filling, where they end.
  for (auto& n : g.nodes)
    for (ValueId v : n.in)
      if (v != kNoValue) ++begin_[to_size(v) + 2];
  for (size_t i = 2; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  readers_.resize(begin_.back());
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].in)
      if (v != kNoValue) readers_[begin_[to_size(v) + 1]++] = static_cast<NodeId>(i);
  for (int f = 0; f < g.variants(); ++f)
    for (ValueId v : g.outputs_of(f))
      if (v != kNoValue) at_index(output_, v) = true;

  for (size_t v = 0; v < g.values.size(); ++v)
    if (g.values[v].kind == ValueKind::kExternal) external_[v] = g.values[v].index;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    const NodeId id = static_cast<NodeId>(i);
    if (n.kind == NodeKind::kAssign && n.target >= 0) at_index(writers_, n.target).push_back(id);
    if (n.kind == NodeKind::kUpdate && n.target >= 0)
      for (int32_t e : at_index(g.updates, n.target).externals) at_index(writers_, e).push_back(id);
    if (is_view(n) && !n.in.empty() && n.in[0] != kNoValue)
      for (ValueId v : n.out) at_index(external_, v) = at_index(external_, n.in[0]);
  }
}

NodeId Readers::only(ValueId v) const {
  auto all = of(v);
  return all.size() == 1 && !is_output(v) ? all[0] : -1;
}

bool Readers::unwritten(const Graph& g, NodeId reader, NodeId after, NodeId until) const {
  for (ValueId v : at_index(g.nodes, reader).in) {
    if (v == kNoValue || at_index(external_, v) < 0) continue;
    for (NodeId w : at_index(writers_, at_index(external_, v)))
      if (w > after && w <= until) return false;
  }
  return true;
}

void remove_nodes(Graph& g, const std::vector<bool>& gone) {
  size_t kept = 0;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    if (gone[i]) continue;
    if (kept != i) g.nodes[kept] = std::move(g.nodes[i]);
    ++kept;
  }
  g.nodes.resize(kept);
}

}  // namespace holon::graph
