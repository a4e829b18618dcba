#include <string_view>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/passes/budget.h"
#include "holon/graph/passes/clones.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

// By scope: the region that it belongs to, the outermost of the given modules; -1: none.
std::vector<int32_t> regions(const Graph& g, const std::vector<std::string>& paths) {
  std::unordered_map<std::string_view, int32_t> wanted;
  for (size_t p = 0; p < paths.size(); ++p) wanted.emplace(paths[p], static_cast<int32_t>(p));
  std::vector<int32_t> of(g.scopes.size(), -1);
  std::vector<bool> found(paths.size(), false);
  for (size_t s = 0; s < g.scopes.size(); ++s) {
    const std::string_view scope = g.scopes[s];
    for (size_t end = scope.find('.'); !scope.empty(); end = scope.find('.', end + 1)) {
      auto it = wanted.find(scope.substr(0, end));
      if (it != wanted.end()) {
        at_index(found, it->second) = true;
        if (of[s] < 0) of[s] = it->second;
      }
      if (end == std::string_view::npos) break;
    }
  }
  for (size_t p = 0; p < paths.size(); ++p)
    if (wanted.at(paths[p]) != static_cast<int32_t>(p)) found[p] = true;  // given twice
  for (size_t p = 0; p < paths.size(); ++p)
    if (!found[p]) {
      std::string some;
      for (size_t s = 1; s < g.scopes.size() && s <= 8; ++s)
        some += (some.empty() ? "" : ", ") + ("\"" + g.scopes[s] + "\"");
      fail_value("recompute: build() runs no module with the path \"{}\". Its modules are {}{}.", paths[p],
                 some.empty() ? "none" : some, g.scopes.size() > 9 ? ", ..." : "");
    }
  return of;
}

void by_module(Graph& g, const std::vector<std::string>& paths) {
  const std::vector<int32_t> region = regions(g, paths);
  std::vector<bool> chosen = may_run_again(g);
  std::vector<int32_t> made_in(g.values.size(), -1);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const int32_t r = at_index(region, g.nodes[i].scope);
    if (r < 0) chosen[i] = false;
    if (!chosen[i]) continue;
    for (ValueId v : g.nodes[i].out) at_index(made_in, v) = r;
  }
  std::vector<int32_t> of_node;
  for (auto& n : g.nodes) of_node.push_back(at_index(region, n.scope));
  clone_into_backward(g, chosen, leaving_values(g, of_node, made_in));
}

}  // namespace

void recompute(Graph& g, const CompileOptions& options) {
  if (!options.recompute.empty()) by_module(g, options.recompute);
  if (options.memory_budget_bytes > 0) recompute_for_budget(g, options.memory_budget_bytes);
}

}  // namespace holon::graph
