#include "holon/graph/passes/chains.h"

#include <algorithm>

#include "holon/base/index.h"

namespace holon::graph {

std::vector<ValueId> inputs_of(const Graph& g, const std::vector<NodeId>& members) {
  std::vector<ValueId> inputs, made;
  for (NodeId m : members) made.push_back(at_index(g.nodes, m).out[0]);
  for (NodeId m : members)
    for (ValueId v : at_index(g.nodes, m).in)
      if (std::find(made.begin(), made.end(), v) == made.end() &&
          std::find(inputs.begin(), inputs.end(), v) == inputs.end())
        inputs.push_back(v);
  return inputs;
}

bool read_later_only(const Readers& readers, const Node& n, const std::vector<NodeId>& members, NodeId last) {
  auto all = readers.of(n.out[0]);
  return std::all_of(all.begin(), all.end(), [&](NodeId r) {
    return r > last || std::find(members.begin(), members.end(), r) != members.end();
  });
}

void make_chain(Graph& g, const Readers& readers, const std::vector<NodeId>& members, NodeId last,
                std::vector<bool>& gone) {
  const std::vector<ValueId> inputs = inputs_of(g, members);
  FusedBody body;
  Node fused = at_index(g.nodes, last);
  fused.kind = NodeKind::kFused;
  fused.op = nullptr;
  fused.attrs = {};
  fused.in = SmallVec<ValueId, 4>(std::span<const ValueId>(inputs));
  fused.out.clear();
  for (size_t i = 0; i < members.size(); ++i) {
    const Node& n = at_index(g.nodes, members[i]);
    FusedPart part{n.op, n.attrs, {}};
    for (ValueId v : n.in) {
      auto at = std::find(inputs.begin(), inputs.end(), v);
      if (at != inputs.end()) {
        part.in.push_back(static_cast<int16_t>(at - inputs.begin()));
        continue;
      }
      auto producer = std::find(members.begin(), members.end(), readers.producer(v));
      part.in.push_back(static_cast<int16_t>(inputs.size() + to_size(producer - members.begin())));
    }
    body.parts.push_back(std::move(part));
    auto all = readers.of(n.out[0]);
    const bool leaves = members[i] == last || readers.is_output(n.out[0]) ||
        std::any_of(all.begin(), all.end(), [&](NodeId r) { return r > last; });
    if (leaves) {
      body.results.push_back(static_cast<int16_t>(i));
      fused.out.push_back(n.out[0]);
    }
    at_index(gone, members[i]) = members[i] != last;
  }
  fused.target = static_cast<int32_t>(g.bodies.size());
  g.bodies.push_back(std::move(body));
  at_index(g.nodes, last) = std::move(fused);
}

}  // namespace holon::graph
