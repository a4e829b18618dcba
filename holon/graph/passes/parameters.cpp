#include "holon/graph/passes/parameters.h"

#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/dispatch/record.h"
#include "holon/graph/passes/clones.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

std::vector<bool> parameter_values(const Graph& g) {
  std::vector<bool> of(g.values.size(), false);
  for (auto& e : g.externals) at_index(of, e.value) = e.parameter || (e.tensor.defined() && is_parameter(e.tensor));
  for (auto& n : g.nodes) {
    if (n.in.size() != 1 || n.in[0] == kNoValue || !at_index(of, n.in[0])) continue;
    if (is_single_boxing(n) || (is_op(n) && shows_parameter(*n.op)))
      for (ValueId v : n.out) at_index(of, v) = true;
  }
  return of;
}

bool reads_peers(const Value& v, const GlobalSpec* from, const GlobalSpec* to) {
  return boxing::max_read_bytes(from, to, v.shape, v.dtype) > 0;
}

bool is_parameter_copy(const Graph& g, const Node& n, const std::vector<bool>& of_parameter) {
  if (!is_single_boxing(n) || n.pinned || !at_index(of_parameter, n.in[0])) return false;
  const Value &from = g.value(n.in[0]), &to = g.value(n.out[0]);
  return from.spec->placement == to.spec->placement && local_bytes(to) > local_bytes(from);
}

void free_parameter_copies(Graph& g, const CompileOptions&) {
  const std::vector<bool> of_parameter = parameter_values(g), may = may_run_again(g);
  std::vector<bool> chosen(g.nodes.size(), false), of_copy(g.values.size(), false);
  bool any = false;
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    if (!may[i]) continue;
    // What is made of a copy alone, at no cost to speak of, would keep it.
    const bool shown =
        n.in.size() == 1 && n.in[0] != kNoValue && at_index(of_copy, n.in[0]) && is_op(n) && shows_parameter(*n.op);
    if (!shown && !is_parameter_copy(g, n, of_parameter)) continue;
    chosen[i] = any = true;
    for (ValueId v : n.out) at_index(of_copy, v) = true;
  }
  if (any) clone_into_backward(g, chosen, std::vector<bool>(g.values.size(), false));
}

}  // namespace holon::graph
