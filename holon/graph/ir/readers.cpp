#include "holon/graph/ir/readers.h"

#include <algorithm>

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
      if (v != kNoValue) ++begin_[static_cast<size_t>(v) + 2];
  for (size_t i = 2; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  readers_.resize(begin_.back());
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].in)
      if (v != kNoValue) readers_[begin_[static_cast<size_t>(v) + 1]++] = static_cast<NodeId>(i);
  for (int f = 0; f < g.variants(); ++f)
    for (ValueId v : g.outputs_of(f))
      if (v != kNoValue) output_[static_cast<size_t>(v)] = true;

  for (size_t v = 0; v < g.values.size(); ++v)
    if (g.values[v].kind == ValueKind::kExternal) external_[v] = g.values[v].index;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    const NodeId id = static_cast<NodeId>(i);
    if (n.kind == NodeKind::kAssign && n.target >= 0) writers_[static_cast<size_t>(n.target)].push_back(id);
    if (n.kind == NodeKind::kUpdate && n.target >= 0)
      for (int32_t e : g.updates[static_cast<size_t>(n.target)].externals)
        writers_[static_cast<size_t>(e)].push_back(id);
    const bool same_memory = n.kind == NodeKind::kRelabel || n.kind == NodeKind::kAgree ||
        n.kind == NodeKind::kBoxing || (n.kind == NodeKind::kOp && n.op && n.op->view);
    if (same_memory && !n.in.empty() && n.in[0] != kNoValue)
      for (ValueId v : n.out) external_[static_cast<size_t>(v)] = external_[static_cast<size_t>(n.in[0])];
  }
}

NodeId Readers::only(ValueId v) const {
  auto all = of(v);
  return all.size() == 1 && !is_output(v) ? all[0] : -1;
}

bool Readers::unwritten(const Graph& g, NodeId reader, NodeId after, NodeId until) const {
  for (ValueId v : g.nodes[static_cast<size_t>(reader)].in) {
    if (v == kNoValue || external_[static_cast<size_t>(v)] < 0) continue;
    for (NodeId w : writers_[static_cast<size_t>(external_[static_cast<size_t>(v)])])
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
