#include "holon/graph/passes/rewrite.h"

#include <algorithm>

#include "holon/base/ceil_div.h"
#include "holon/base/index.h"

namespace holon::graph {

void Rewrite::replace(ValueId old, ValueId by) {
  if (by_.size() < g_.values.size()) by_.resize(g_.values.size(), kNoValue);
  at_index(by_, old) = by;
}

ValueId Rewrite::replaced(ValueId v) {
  if (v == kNoValue || to_size(v) >= by_.size()) return v;
  ValueId end = v;
  while (to_size(end) < by_.size() && at_index(by_, end) != kNoValue) end = at_index(by_, end);
  while (v != end) {  // so that long chains are walked once
    ValueId next = at_index(by_, v);
    at_index(by_, v) = end;
    v = next;
  }
  return end;
}

ValueId Rewrite::value_like(ValueId v, const GlobalSpec* spec) {
  Value made = g_.value(v);
  made.spec = spec;
  made.kind = ValueKind::kNode;
  made.index = -1;
  return g_.add_value(made);
}

void Rewrite::commit() {
  const bool replaces = !by_.empty();
  auto read = [&](Node& n) {
    if (replaces)
      for (ValueId& v : n.in) v = replaced(v);
  };
  if (replaces)
    for (auto& variant : g_.of_variant)
      for (ValueId& v : variant.outputs) v = replaced(v);
  std::stable_sort(insertions_.begin(), insertions_.end(),
                   [](const Insertion& a, const Insertion& b) { return a.key < b.key; });
  const bool moves = !insertions_.empty() || std::find(dropped_.begin(), dropped_.end(), true) != dropped_.end();
  if (!moves) {
    for (auto& n : g_.nodes) read(n);
    return;
  }
  std::vector<Node> nodes;
  nodes.reserve(g_.nodes.size() + insertions_.size());
  auto next = insertions_.begin();
  auto insert_upto = [&](NodeId key) {
    for (; next != insertions_.end() && next->key <= key; ++next) {
      read(next->node);
      nodes.push_back(std::move(next->node));
    }
  };
  for (size_t i = 0; i < g_.nodes.size(); ++i) {
    insert_upto(2 * static_cast<NodeId>(i));
    if (!dropped_[i]) {
      read(g_.nodes[i]);
      nodes.push_back(std::move(g_.nodes[i]));
    }
    insert_upto(2 * static_cast<NodeId>(i) + 1);
  }
  insert_upto(2 * static_cast<NodeId>(g_.nodes.size()) + 1);
  g_.nodes = std::move(nodes);
  insertions_.clear();
}

Node node_like(const Node& of, NodeKind kind) {
  Node n;
  n.kind = kind;
  n.section = of.section;
  n.stage = of.stage;
  n.scope = of.scope;
  n.site = of.site;
  return n;
}

Node make_boxing(const Node& like, ValueId from, ValueId to) {
  Node n = node_like(like, NodeKind::kBoxing);
  n.in.push_back(from);
  n.out.push_back(to);
  return n;
}

bool is_single_boxing(const Node& n) { return n.kind == NodeKind::kBoxing && n.in.size() == 1; }

int64_t logical_bytes(const Value& v) { return v.shape.numel() * static_cast<int64_t>(size_bytes(v.dtype)); }

int64_t local_bytes(const Value& v) {
  if (!v.spec) return logical_bytes(v);
  // The first rank's pieces are never smaller than another's.
  Dims shape = v.shape;
  for (int a = 0; a < v.spec->nd_sbp.size(); ++a) {
    Sbp s = v.spec->nd_sbp[a];
    if (!s.is_split()) continue;
    const int64_t ranks = v.spec->placement.hierarchy()[a];
    shape[s.axis] = ceil_div(shape[s.axis], ranks);
  }
  return shape.numel() * static_cast<int64_t>(size_bytes(v.dtype));
}

std::vector<int32_t> alias_roots(const Graph& g) {
  std::vector<int32_t> root(g.values.size(), -1);
  for (size_t v = 0; v < g.values.size(); ++v)
    if (g.values[v].kind == ValueKind::kExternal) root[v] = g.values[v].index;
  for (auto& n : g.nodes) {
    if (!is_view(n)) continue;
    for (size_t i = 0; i < n.out.size(); ++i) {
      ValueId from = n.kind == NodeKind::kBoxing ? n.in[i] : n.in[0];
      if (from != kNoValue) at_index(root, n.out[i]) = at_index(root, from);
    }
  }
  return root;
}

}  // namespace holon::graph
