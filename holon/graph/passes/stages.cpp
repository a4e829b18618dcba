#include <algorithm>
#include <limits>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

constexpr int16_t kUnknown = -1;
constexpr int kSeveral = -2;

class Stages {
 public:
  explicit Stages(Graph& g) : g_(g), of_value_(g.values.size(), kUnknown) {}

  void run() {
    if (!count()) return;
    learn_placements();
    for (auto& n : g_.nodes) place(n);
    place_rest();
    for (auto& n : g_.nodes)
      if (n.section == Section::kForward) check(n);
  }

 private:
  std::string where(const Node& n) const {
    const std::string& scope = at_index(g_.scopes, n.scope);
    const std::string& site = at_index(g_.sites, n.site);
    std::string s = scope.empty() ? "build()" : scope;
    return site.empty() ? s : s + " (" + site + ")";
  }

  // False where there is but one stage.
  bool count() {
    std::vector<const Node*> first;  // of each stage
    for (auto& n : g_.nodes) {
      if (n.stage < 0) continue;
      if (to_size(n.stage) >= first.size()) first.resize(to_size(n.stage) + 1);
      if (!at_index(first, n.stage)) at_index(first, n.stage) = &n;
    }
    const int wanted = std::max<int>(g_.stages, static_cast<int>(first.size()));
    if (wanted > 1)
      for (int s = 0; s < wanted; ++s)
        if (s >= static_cast<int>(first.size()) || !at_index(first, s))
          fail_value("stage {} of the pipeline has nothing to do: the stages are numbered up to {}{}, and no module of "
                     "stage {} computes anything. Number the stages 0, 1, 2, ... by set_stage() without gaps.",
                     s, wanted - 1,
                     s < static_cast<int>(first.size()) ? fmt::format(" (\"{}\")", where(*first.back())) : "", s);
    g_.stages = std::max(1, static_cast<int>(first.size()));
    if (g_.stages > 1) return true;
    for (auto& n : g_.nodes) n.stage = 0;
    return false;
  }

  void learn_placements() {
    for (auto& n : g_.nodes) {
      if (n.stage < 0 || n.section != Section::kForward) continue;
      for (ValueId v : n.out)
        if (const Value& value = g_.value(v); value.spec) {
          auto [it, fresh] = of_placement_.try_emplace(value.spec->placement.id(), n.stage);
          if (!fresh && it->second != n.stage) it->second = kSeveral;
        }
    }
  }

  int16_t by_placement(const Node& n) const {
    for (ValueId v : n.out)
      if (const Value& value = g_.value(v); value.spec) {
        auto it = of_placement_.find(value.spec->placement.id());
        return it == of_placement_.end() || it->second == kSeveral ? kUnknown : static_cast<int16_t>(it->second);
      }
    return kUnknown;
  }

  void place(Node& n) {
    if (n.stage < 0) {
      n.stage = by_placement(n);
      // A result that build() brings back to the ranks of an earlier stage, to return it there, is still the later
      // stage's.
      if (n.section == Section::kForward && n.stage >= 0)
        for (ValueId v : n.in)
          if (v != kNoValue) n.stage = std::max(n.stage, at_index(of_value_, v));
    }
    if (n.stage < 0 && n.kind == NodeKind::kAssign) {
      const Value& to = g_.value(at_index(g_.externals, n.target).value);
      if (to.spec)
        if (auto it = of_placement_.find(to.spec->placement.id()); it != of_placement_.end() && it->second >= 0)
          n.stage = static_cast<int16_t>(it->second);
    }
    if (n.stage < 0) {
      // Forward goes to later stages and comes back in backward.
      int16_t least = std::numeric_limits<int16_t>::max(), most = kUnknown;
      for (ValueId v : n.in) {
        if (v == kNoValue || at_index(of_value_, v) < 0) continue;
        least = std::min(least, at_index(of_value_, v));
        most = std::max(most, at_index(of_value_, v));
      }
      if (most >= 0) n.stage = n.section == Section::kBackward || n.section == Section::kWeight ? least : most;
    }
    for (ValueId v : n.out) at_index(of_value_, v) = n.stage;
  }

  // Nodes of parameters and constants alone belong to who reads them first.
  void place_rest() {
    std::vector<int16_t> reader(g_.values.size(), std::numeric_limits<int16_t>::max());
    for (size_t i = g_.nodes.size(); i-- > 0;) {
      Node& n = g_.nodes[i];
      if (n.stage < 0) {
        int16_t first = std::numeric_limits<int16_t>::max();
        for (ValueId v : n.out) first = std::min(first, at_index(reader, v));
        n.stage = first == std::numeric_limits<int16_t>::max() ? int16_t{0} : first;
      }
      for (ValueId v : n.in)
        if (v != kNoValue) at_index(reader, v) = std::min(at_index(reader, v), n.stage);
    }
    for (auto& n : g_.nodes)
      for (ValueId v : n.out) at_index(of_value_, v) = n.stage;
  }

  void check(const Node& n) const {
    for (ValueId v : n.in) {
      if (v == kNoValue || at_index(of_value_, v) <= n.stage) continue;
      fail_value("{}, of stage {}, reads what stage {} computes. Stages run one after the other: by set_stage(), give "
                 "the module a stage that is not before those that compute its inputs.",
                 where(n), n.stage, at_index(of_value_, v));
    }
  }

  Graph& g_;
  std::vector<int16_t> of_value_;
  std::unordered_map<const void*, int> of_placement_;
};

}  // namespace

void assign_stages(Graph& g, const CompileOptions&) { Stages(g).run(); }

}  // namespace holon::graph
