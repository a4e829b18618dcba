#include "holon/graph/passes/budget.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/graph/passes/clones.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"
#include "holon/op_names/cast.h"

namespace holon::graph {

namespace {

// A way to cut forward into units, each of which can be computed again or not.
struct Tiling {
  std::vector<int32_t> unit;  // of each node; -1: it is kept
  int32_t units = 0;
  bool modules = false;  // what leaves a unit is kept
};

struct Choice {
  std::vector<bool> chosen, kept;
  int64_t peak = 0;
  double cost = 0;
};

// What a node costs, in elements that are touched or multiplied.
double cost_of(const Graph& g, const Node& n) {
  double cost = 0;
  for (ValueId v : n.out) cost += static_cast<double>(local_bytes(g.value(v)));
  if (!is_op(n) || n.op->view) return is_op(n) ? 0 : 4 * cost;
  if (n.op->elementwise || n.in.size() < 2 || n.in[0] == kNoValue || n.in[1] == kNoValue) return cost;
  // A product over k sums k terms: (m k) (k n) / (m n) is k^2.
  const double a = static_cast<double>(local_bytes(g.value(n.in[0]))),
               b = static_cast<double>(local_bytes(g.value(n.in[1])));
  return cost + 2 * cost * std::sqrt(a * b / std::max(cost, 1.0) / 4) / 4;
}

bool is_cheap(const Node& n) {
  if (n.kind == NodeKind::kRelabel) return true;
  return is_op(n) && (n.op->elementwise || n.op->view || n.op->random || n.op == op::cast);
}

class Budget {
 public:
  Budget(Graph& g, int64_t bytes) : g_(g), bytes_(bytes), may_(may_run_again(g)) {}

  void run() {
    const int64_t before = estimate_peak_bytes(g_);
    if (before <= bytes_) return;
    int64_t least = before;
    std::optional<Choice> best;
    for (const Tiling& t : tilings()) {
      if (t.units == 0) continue;
      const std::vector<int32_t> order = by_worth(t);
      Choice all = choose(t, order, order.size());
      least = std::min(least, all.peak);
      if (all.peak > bytes_) continue;
      size_t low = 0, high = order.size();  // too few, enough
      while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        Choice some = choose(t, order, middle);
        if (some.peak <= bytes_) {
          high = middle;
          all = std::move(some);
        } else {
          low = middle;
        }
      }
      if (!best || all.cost < best->cost) best = std::move(all);
    }
    if (!best)
      fail_value("memory budget: a rank would need {} for the values of a step and {} are allowed; recomputation in "
                 "backward reduces it to {} at best. Allow that much, or reduce what each rank holds by more "
                 "micro-batches, ranks or stages.",
                 text(before), text(bytes_), text(least));
    clone_into_backward(g_, best->chosen, best->kept);
  }

 private:
  static std::string text(int64_t bytes) {
    return bytes < 10 << 20 ? fmt::format("{} bytes", bytes)
                            : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
  }

  // Cheap nodes first; then modules, from the innermost to the outermost.
  std::vector<Tiling> tilings() const {
    std::vector<Tiling> all;
    Tiling cheap;
    cheap.unit.assign(g_.nodes.size(), -1);
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (may_[i] && is_cheap(g_.nodes[i])) cheap.unit[i] = g_.nodes[i].scope;
    cheap.units = static_cast<int32_t>(g_.scopes.size());
    all.push_back(std::move(cheap));
    int depth = 0;
    for (auto& s : g_.scopes)
      if (!s.empty()) depth = std::max(depth, 1 + static_cast<int>(std::count(s.begin(), s.end(), '.')));
    for (int d = std::min(depth, kMostDepth); d >= 1; --d) all.push_back(modules_at(d));
    return all;
  }

  Tiling modules_at(int depth) const {
    std::unordered_map<std::string_view, int32_t> numbers;
    std::vector<int32_t> of_scope(g_.scopes.size(), -1);
    for (size_t s = 0; s < g_.scopes.size(); ++s) {
      const std::string_view path = g_.scopes[s];
      if (path.empty()) continue;
      size_t end = path.find('.');
      for (int d = 1; d < depth && end != std::string_view::npos; ++d) end = path.find('.', end + 1);
      of_scope[s] = numbers.try_emplace(path.substr(0, end), static_cast<int32_t>(numbers.size())).first->second;
    }
    Tiling t;
    t.modules = true;
    t.units = static_cast<int32_t>(numbers.size());
    for (size_t i = 0; i < g_.nodes.size(); ++i) t.unit.push_back(may_[i] ? at_index(of_scope, g_.nodes[i].scope) : -1);
    return t;
  }

  std::vector<bool> kept_by(const Tiling& t, const std::vector<bool>& chosen) const {
    if (!t.modules) return std::vector<bool>(g_.values.size(), false);
    std::vector<int32_t> made_in(g_.values.size(), -1);
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (chosen[i])
        for (ValueId v : g_.nodes[i].out) at_index(made_in, v) = t.unit[i];
    return leaving_values(g_, t.unit, made_in);
  }

  // The units by the bytes that they let go for what they cost.
  std::vector<int32_t> by_worth(const Tiling& t) const {
    std::vector<bool> every(g_.nodes.size());
    for (size_t i = 0; i < every.size(); ++i) every[i] = t.unit[i] >= 0;
    const std::vector<bool> kept = kept_by(t, every);
    std::vector<bool> read(g_.values.size(), false);
    for (auto& n : g_.nodes)
      if (n.section == Section::kBackward || n.section == Section::kWeight)
        for (ValueId v : n.in)
          if (v != kNoValue) at_index(read, v) = true;
    std::vector<double> saved(to_size(t.units), 0), cost(to_size(t.units), 1);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (t.unit[i] < 0) continue;
      const auto u = to_size(t.unit[i]);
      cost[u] += cost_of(g_, g_.nodes[i]);
      for (ValueId v : g_.nodes[i].out)
        if (at_index(read, v) && !at_index(kept, v)) saved[u] += static_cast<double>(local_bytes(g_.value(v)));
    }
    std::vector<int32_t> order;
    for (int32_t u = 0; u < t.units; ++u)
      if (at_index(saved, u) > 0) order.push_back(u);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const auto i = to_size(a), j = to_size(b);
      return saved[i] * cost[j] > saved[j] * cost[i];
    });
    return order;
  }

  Choice choose(const Tiling& t, const std::vector<int32_t>& order, size_t n) const {
    std::vector<bool> in(to_size(t.units), false);
    for (size_t k = 0; k < n; ++k) at_index(in, order[k]) = true;
    Choice c;
    c.chosen.assign(g_.nodes.size(), false);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (t.unit[i] < 0 || !at_index(in, t.unit[i])) continue;
      c.chosen[i] = true;
      c.cost += cost_of(g_, g_.nodes[i]);
    }
    c.kept = kept_by(t, c.chosen);
    Graph copy = g_;
    clone_into_backward(copy, c.chosen, c.kept);
    c.peak = estimate_peak_bytes(copy);
    return c;
  }

  static constexpr int kMostDepth = 5;

  Graph& g_;
  const int64_t bytes_;
  const std::vector<bool> may_;
};

}  // namespace

std::vector<bool> leaving_values(const Graph& g, const std::vector<int32_t>& region,
                                 const std::vector<int32_t>& made_in) {
  std::vector<bool> kept(g.values.size(), false);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    if (n.section == Section::kBackward || n.section == Section::kWeight) continue;
    const int32_t r = n.section == Section::kForward && is_pure(n) ? region[i] : -1;
    for (ValueId v : n.in)
      if (v != kNoValue && at_index(made_in, v) >= 0 && at_index(made_in, v) != r) at_index(kept, v) = true;
  }
  for (ValueId v : g.only().outputs) at_index(kept, v) = true;
  return kept;
}

void recompute_for_budget(Graph& g, int64_t budget_bytes) { Budget(g, budget_bytes).run(); }

}  // namespace holon::graph
