#include "holon/graph/capture/blocks.h"

#include <algorithm>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/cost/machine.h"
#include "holon/graph/cost/node_cost.h"
#include "holon/graph/schedule/cut.h"

namespace holon::graph {

namespace {

class Chains {
 public:
  Chains(const Graph& g, std::span<const std::string> paths) : g_(g), paths_(paths) {}

  Chain run(int stages) {
    find_blocks();
    if (static_cast<int>(chain_.blocks.size()) < stages)
      fail_value("config.pipeline: {} stages, but the graph's modules form a chain of {} block{}{}. A block is a "
                 "member of a Sequential or ModuleList, or another direct child of a graph's module. Request fewer "
                 "stages, or assign stages to modules by set_stage().",
                 stages, chain_.blocks.size(), chain_.blocks.size() == 1 ? "" : "s",
                 chain_.blocks.empty() ? "" : " (" + list() + ")");
    place_nodes();
    count();
    chain_.first = cut_stages(chain_.costs, stages, chain_.cut_costs);
    return std::move(chain_);
  }

 private:
  std::string list() const {
    std::string s;
    for (auto& b : chain_.blocks) s += (s.empty() ? "" : ", ") + b;
    return s;
  }

  // The block that a scope is in, or -1.
  int block_of(int32_t scope) {
    auto [it, fresh] = of_scope_.try_emplace(scope, -1);
    if (fresh)
      for (size_t b = 0; b < chain_.blocks.size(); ++b)
        if (within(at_index(g_.scopes, scope), chain_.blocks[b])) it->second = static_cast<int>(b);
    return it->second;
  }
  static bool within(const std::string& scope, const std::string& path) {
    return scope.compare(0, path.size(), path) == 0 && (scope.size() == path.size() || scope[path.size()] == '.');
  }

  void find_blocks() {
    std::vector<bool> seen_scope(g_.scopes.size(), false), seen_path(paths_.size(), false);
    for (auto& n : g_.nodes) {
      if (n.section != Section::kForward || at_index(seen_scope, n.scope)) continue;
      at_index(seen_scope, n.scope) = true;
      for (size_t p = 0; p < paths_.size(); ++p)
        if (!seen_path[p] && within(at_index(g_.scopes, n.scope), paths_[p])) {
          seen_path[p] = true;
          chain_.blocks.push_back(paths_[p]);
        }
    }
  }

  void place_nodes() {
    int current = 0;
    of_value_.assign(g_.values.size(), -1);
    for (auto& n : g_.nodes) {
      const int own = block_of(n.scope);
      int block = own;
      if (n.section == Section::kForward) {
        // A module that is called again after later ones does not bring the chain back.
        current = std::max(current, own);
        if (own < 0) block = current;
      } else if (own < 0) {
        for (ValueId v : n.in)
          if (v != kNoValue) block = std::max(block, at_index(of_value_, v));
        block = std::max(block, 0);
      }
      for (ValueId v : n.out) at_index(of_value_, v) = block;
      of_node_.push_back(block);
    }
  }

  void count() {
    const size_t n = chain_.blocks.size();
    chain_.costs.assign(n, 0);
    chain_.bytes.assign(n - 1, 0);
    chain_.input_readers.resize(g_.n_inputs());
    chain_.external_readers.resize(g_.externals.size());
    std::vector<int> last(g_.values.size(), -1);  // block that reads a value of forward
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& node = g_.nodes[i];
      if (node.kind == NodeKind::kUpdate) continue;
      const int block = of_node_[i];
      at_index(chain_.costs, block) += seconds(g_, node) + boxing_seconds(g_, node);
      if (node.section != Section::kForward) continue;
      for (ValueId v : node.in) {
        if (v == kNoValue) continue;
        at_index(last, v) = std::max(at_index(last, v), block);
        const Value& value = g_.value(v);
        if (value.kind == ValueKind::kInput) note(at_index(chain_.input_readers, value.index), block);
        if (value.kind == ValueKind::kExternal) note(at_index(chain_.external_readers, value.index), block);
      }
    }
    for (size_t v = 0; v < g_.values.size(); ++v)
      if (of_value_[v] >= 0)
        for (int b = of_value_[v]; b < last[v]; ++b) at_index(chain_.bytes, b) += part_bytes(g_.values[v]);
    const MachineCosts& m = machine_costs();
    for (int64_t bytes : chain_.bytes)
      chain_.cut_costs.push_back(
          2 * (m.step_s + m.sync_s + static_cast<double>(bytes) / rate(m.copy, static_cast<double>(bytes), m)));
  }

  static void note(std::vector<int>& readers, int block) {
    auto at = std::lower_bound(readers.begin(), readers.end(), block);
    if (at == readers.end() || *at != block) readers.insert(at, block);
  }

  const Graph& g_;
  std::span<const std::string> paths_;
  Chain chain_;
  std::unordered_map<int32_t, int> of_scope_;
  std::vector<int> of_value_, of_node_;
};

}  // namespace

int Chain::stage_of(int block) const {
  return static_cast<int>(std::upper_bound(first.begin(), first.end(), block) - first.begin()) - 1;
}

Chain cut_chain(const Graph& g, std::span<const std::string> paths, int stages) { return Chains(g, paths).run(stages); }

}  // namespace holon::graph
