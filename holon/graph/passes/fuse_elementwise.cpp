#include <algorithm>
#include <queue>

#include "holon/base/index.h"
#include "holon/graph/passes/chains.h"
#include "holon/graph/passes/fuse.h"
#include "holon/graph/program/fused.h"

namespace holon::graph {
namespace {

// More ops or operands than these do not fit into the first cache together.
constexpr size_t kMostParts = 32, kMostInputs = 12;

bool eligible(const Graph& g, const Node& n) {
  if (n.kind != NodeKind::kOp || n.draw >= 0 || n.out.size() != 1 || n.in.empty() || !n.op || !fusible(*n.op))
    return false;
  const Value& out = g.value(n.out[0]);
  for (ValueId v : n.in) {
    if (v == kNoValue) return false;
    if (!(g.value(v).device == out.device)) return false;
  }
  return true;
}

bool alike(const Graph& g, const Node& a, const Node& b) {
  const Value &x = g.value(a.out[0]), &y = g.value(b.out[0]);
  return a.section == b.section && a.stage == b.stage && a.pinned == b.pinned && x.shape == y.shape &&
      x.spec == y.spec && x.device == y.device;
}

// The chain that ends with node `last`: from there towards the inputs, every op whose result nobody else reads before.
std::vector<NodeId> chain(const Graph& g, const Readers& readers, const std::vector<bool>& taken, NodeId last) {
  std::vector<NodeId> members{last};
  // Highest first: when a candidate's turn comes, all of its readers that can be members are.
  std::priority_queue<NodeId> candidates;
  auto add_producers = [&](NodeId m) {
    for (ValueId v : at_index(g.nodes, m).in)
      if (NodeId p = readers.producer(v); p >= 0) candidates.push(p);
  };
  add_producers(last);
  NodeId before = last;
  while (!candidates.empty() && members.size() < kMostParts) {
    const NodeId p = candidates.top();
    candidates.pop();
    if (p == before) continue;
    before = p;
    const Node& n = at_index(g.nodes, p);
    if (at_index(taken, p) || !eligible(g, n) || !alike(g, n, at_index(g.nodes, last))) continue;
    if (!read_later_only(readers, n, members, last) || !readers.may_read_later(g, p, last)) continue;
    members.push_back(p);
    if (inputs_of(g, members).size() > kMostInputs) {
      members.pop_back();
      continue;
    }
    add_producers(p);
  }
  std::reverse(members.begin(), members.end());
  return members;
}

}  // namespace

void fuse_elementwise(Graph& g, const CompileOptions&) {
  const Readers readers(g);
  std::vector<bool> taken(g.nodes.size(), false), gone(g.nodes.size(), false);
  for (NodeId last = static_cast<NodeId>(g.nodes.size()) - 1; last >= 0; --last) {
    if (at_index(taken, last) || !eligible(g, at_index(g.nodes, last))) continue;
    const std::vector<NodeId> members = chain(g, readers, taken, last);
    if (members.size() < 2) continue;
    for (NodeId m : members) at_index(taken, m) = true;
    make_chain(g, readers, members, last, gone);
  }
  remove_nodes(g, gone);
}

}  // namespace holon::graph
