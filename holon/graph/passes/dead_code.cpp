#include "holon/base/index.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

void drop_dead_code(Graph& g, const CompileOptions&) {
  std::vector<bool> read(g.values.size(), false);
  for (ValueId v : g.only().outputs) at_index(read, v) = true;
  Rewrite edit(g);
  for (size_t i = g.nodes.size(); i-- > 0;) {
    const Node& n = g.nodes[i];
    bool lives = !is_pure(n);
    for (ValueId v : n.out) lives = lives || at_index(read, v);
    if (!lives) {
      edit.drop(static_cast<NodeId>(i));
      continue;
    }
    for (size_t k = 0; k < n.in.size(); ++k)
      if (n.in[k] != kNoValue) at_index(read, n.in[k]) = true;
  }
  edit.commit();
}

}  // namespace holon::graph
