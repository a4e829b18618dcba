// Eager chooses a signature for each call by what its own inputs cost; here all readers of a result count as well,
// backward's among them.
//
// The signature of a node is changed, along one axis of the ranks, where the cost of all boxings falls and the node
// holds no more bytes than before: of a chain of nodes together, where the best of all ways is found by dynamic
// programming, and node by node, with boxings carried over some nodes. Sweeps end when nothing is gained. A split
// parameter that stays where it is comes before any time.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/base/index.h"
#include "holon/contract/compilation.h"
#include "holon/graph/ir/signatures.h"
#include "holon/graph/passes/open_layouts.h"
#include "holon/graph/passes/pass.h"

namespace holon::graph {

namespace {

constexpr double kLeastGain = 0.02;  // of what the boxings around a node cost
constexpr int kMostSweeps = 4;
constexpr int kFar = 6;  // nodes that a boxing is carried through

using Cost = BoxingCost;
using Known = KnownSignatures::Of;

class Choose {
 public:
  Choose(Graph& g, bool keep_parameters)
      : g_(g), open_(g, keep_parameters), changed_(g.values.size(), 1), visited_(g.nodes.size(), 0) {}

  void run() {
    if (!open_.look()) return;
    find_chains();
    auto* compilation = contract::Compilation::current();
    std::optional<bool> changed;
    if (compilation && compilation->is_frozen()) changed = take(*compilation);
    if (!changed) {
      std::vector<State> before;
      for (size_t i = 0; compilation && i < g_.nodes.size(); ++i) before.push_back(open_.layouts(i));
      changed = improve_all();
      if (compilation && *changed) note(*compilation, before);
    }
    if (*changed) open_.rebuild();
  }

 private:
  using State = NodeLayouts;

  bool improve_all() {
    const contract::Compilation::Search searching;
    bool changed = false;
    for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
      bool gained = false;
      for (auto& chain : chains_) gained |= improve_chain(chain);
      // There and back: what a node gains may depend on those before it, or on those after it.
      const size_t n = g_.nodes.size();
      for (size_t i = 0; i < n; ++i) gained |= improve(sweep % 2 ? i : n - 1 - i);
      changed |= gained;
      if (!gained) break;
    }
    return changed;
  }

  // Of calls that are alike, some of which have changed, all are noted, in their order.
  void note(contract::Compilation& compilation, const std::vector<State>& before) {
    std::vector<std::string> calls(before.size());
    std::set<std::string> changed;
    for (size_t i = 0; i < before.size(); ++i) {
      if (!open_.known(i)) continue;
      calls[i] = call_text(g_, g_.nodes[i], *open_.known(i), before[i]);
      const State now = open_.layouts(i);
      if (!alike(now.in, before[i].in) || !alike(now.out, before[i].out)) changed.insert(calls[i]);
    }
    for (size_t i = 0; i < before.size(); ++i)
      if (changed.contains(calls[i])) compilation.note(calls[i], layouts_text(open_.layouts(i)));
  }
  // Takes what was noted; whether that changes anything. nullopt: it does not fit, and all is as before.
  std::optional<bool> take(contract::Compilation& compilation) {
    std::vector<std::pair<size_t, State>> done;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Known* k = open_.known(i);
      if (!k) continue;
      const Node& n = g_.nodes[i];
      const State before = open_.layouts(i);
      const auto taken = compilation.next(call_text(g_, n, *k, before));
      if (!taken) continue;
      const auto s = layouts_from(*taken, before);
      if (!s || !has_signature(*n.op, n.attrs, k->in, k->out, s->in, s->out)) {
        for (size_t d = done.size(); d-- > 0;) open_.set(done[d].first, done[d].second);
        return std::nullopt;
      }
      done.emplace_back(i, before);
      open_.set(i, *s);
    }
    return !done.empty();
  }

  // Paths in which each node reads what the one before makes, and is the first that does. Each node is in one.
  void find_chains() {
    std::vector<bool> taken(g_.nodes.size(), false);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      std::vector<size_t> chain;
      for (size_t at = i; !taken[at] && open_.known(at);) {
        taken[at] = true;
        chain.push_back(at);
        const NodeId next = open_.reader(g_.nodes[at].out[0]);
        if (next < 0 || !(open_.now(g_.nodes[at].out[0])->placement == placement_of(to_size(next)))) break;
        at = to_size(next);
      }
      if (chain.size() > 1) chains_.push_back(std::move(chain));
    }
  }
  Placement placement_of(size_t at) {
    const Node& n = g_.nodes[at];
    return !n.out.empty() && open_.now(n.out[0]) ? open_.now(n.out[0])->placement : Placement();
  }

  // The state with the signature along one axis of the ranks; false: it cannot be had. open: a source whose layout is
  // not settled.
  bool along(const Node& n, State& s, int axis, const Signature& signature, ValueId open = kNoValue) {
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (!s.in[i]) continue;
      // An op never makes partial sums out of whole values by itself.
      if (signature.in[i].is_partial() && open_.source(n.in[i]) != open &&
          !open_.now(open_.source(n.in[i]))->nd_sbp[axis].is_partial())
        return false;
      if (!(s.in[i]->nd_sbp[axis] == signature.in[i]))
        s.in[i] = intern_spec(s.in[i]->placement, s.in[i]->nd_sbp.with(axis, signature.in[i]));
    }
    for (size_t o = 0; o < n.out.size(); ++o)
      if (!(s.out[o]->nd_sbp[axis] == signature.out[o]))
        s.out[o] = intern_spec(s.out[o]->placement, s.out[o]->nd_sbp.with(axis, signature.out[o]));
    return !(signature.even_units && signature.even_units % s.out[0]->placement.hierarchy()[axis]);
  }

  // The state of the least cost among those that one axis of the ranks can change and `allowed` lets through; what it
  // changes the cost of all boxings by.
  template <class Allowed>
  std::optional<std::pair<State, Cost>> best(size_t at, Allowed allowed) {
    const Known* k = open_.known(at);
    if (!k) return {};
    const Node& n = g_.nodes[at];
    const State before = open_.layouts(at);
    const Cost cost_before = open_.cost_around(at);
    const int64_t held_before = open_.held(at);
    std::optional<std::pair<State, Cost>> found;
    for (int a = 0; a < open_.now(n.out[0])->placement.hierarchy().size(); ++a)
      for (const Signature& signature : k->signatures) {
        State tried = before;
        if (!along(n, tried, a, signature) || !allowed(tried)) continue;
        open_.set(at, tried);
        const bool larger = open_.held(at) > held_before;
        const Cost gain = open_.cost_around(at) - cost_before;
        open_.set(at, before);
        if (larger || (found && !(gain < found->second))) continue;
        if (has_signature(*n.op, n.attrs, k->in, k->out, tried.in, tried.out)) found = {tried, gain};
      }
    return found;
  }

  bool improve(size_t at) {
    if (!open_.is_redistributed(at) || !open_.known(at)) return false;
    const Node& n = g_.nodes[at];
    if (visited_[at] > last_change(n)) return false;
    visited_[at] = ++clock_;
    const Cost least{0, -kLeastGain * open_.cost_around(at).s};
    auto one = best(at, [](const State&) { return true; });
    if (one && one->second < least) {
      open_.set(at, one->first);
      mark(at);
      return true;
    }
    return carry(at, true, least) || carry(at, false, least);
  }

  // Moves a boxing from node to node, against the order (up) or along it: each takes the layout on the other side of
  // the boxing. What is gained may come some nodes later, where the boxing cancels another one.
  bool carry(size_t at, bool up, Cost least) {
    std::vector<std::pair<size_t, State>> path;  // with the states before
    Cost sum, lowest = least;
    size_t keep = 0;
    for (int step = 0; step < kFar; ++step) {
      const Node& n = g_.nodes[at];
      if (!open_.known(at)) break;
      const GlobalSpec* to = nullptr;
      size_t input = 0;
      if (up) {
        for (const OpenLayouts::Wanted& w : open_.readers(n.out[0]))
          if (w.readers > 0 && w.spec != open_.now(n.out[0])) to = w.spec;
      } else {
        for (size_t i = 0; i < n.in.size() && !to; ++i)
          if (open_.wants(at)[i] && open_.now(open_.source(n.in[i])) != open_.wants(at)[i]) {
            to = open_.now(open_.source(n.in[i]));
            input = i;
          }
      }
      if (!to) break;
      auto next = best(at, [&](const State& s) { return (up ? s.out[0] : s.in[input]) == to; });
      if (!next) break;
      path.emplace_back(at, open_.layouts(at));
      open_.set(at, next->first);
      sum += next->second;
      if (sum < lowest) {
        lowest = sum;
        keep = path.size();
      }
      // On to where the boxing is now.
      NodeId on = -1;
      if (up) {
        for (size_t i = 0; i < n.in.size() && on < 0; ++i)
          if (open_.wants(at)[i] && open_.now(open_.source(n.in[i])) != open_.wants(at)[i])
            on = open_.made_by(open_.source(n.in[i]));
      } else {
        on = open_.reader(n.out[0]);
      }
      if (on < 0) break;
      at = to_size(on);
    }
    for (size_t i = path.size(); i-- > keep;) open_.set(path[i].first, path[i].second);
    for (size_t i = 0; i < keep; ++i) mark(path[i].first);
    return keep > 0;
  }

  // Chooses the signatures of a chain's nodes together, for each axis of the ranks. What is next to it stays as it is:
  // where that is not of the chain itself, nothing is cheaper.
  bool improve_chain(const std::vector<size_t>& chain) {
    if (std::none_of(chain.begin(), chain.end(), [&](size_t at) { return open_.is_redistributed(at); })) return false;
    int64_t changed = 0;
    for (size_t at : chain) changed = std::max(changed, last_change(g_.nodes[at]));
    int64_t& seen = chain_seen_[chain[0]];
    if (seen > changed) return false;
    seen = ++clock_;
    bool gained = false;
    for (int a = 0; a < open_.now(g_.nodes[chain[0]].out[0])->placement.hierarchy().size(); ++a)
      gained |= improve_chain(chain, a);
    return gained;
  }

  bool improve_chain(const std::vector<size_t>& chain, int axis) {
    // A way to bring a node into a state: the cheapest over the nodes before it.
    struct Way {
      State state;
      Cost cost;
      size_t before = 0;  // among the ways of the node before
    };
    std::vector<std::vector<Way>> ways(chain.size());
    std::vector<State> old;
    for (size_t at : chain) old.push_back(open_.layouts(at));
    const Cost cost_before = open_.cost_around(chain);
    for (size_t i = 0; i < chain.size(); ++i) {
      const Node& n = g_.nodes[chain[i]];
      const bool last = i + 1 == chain.size();
      const ValueId link = i ? g_.nodes[chain[i - 1]].out[0] : kNoValue;
      const int64_t most = i ? open_.bytes_of_variants(link) : 0;
      for (State& s : states_along(chain[i], axis, old[i], link, last)) {
        open_.set(chain[i], s);
        Cost beside = open_.cost_beside(n, link, last) + open_.cost_inside(chain[i]);
        std::optional<Way> least;
        if (!i) least = Way{s, beside};
        for (size_t w = 0; i && w < ways[i - 1].size(); ++w) {
          const Way& before = ways[i - 1][w];
          if (!is_open_to(n, s, link, before.state.out[0], axis)) continue;
          open_.set(chain[i - 1], before.state);
          if (open_.bytes_of_variants(link) > most) continue;
          const Cost sum = before.cost + beside + open_.cost(link);
          if (!least || sum < least->cost) least = Way{s, sum, w};
        }
        if (i) open_.set(chain[i - 1], old[i - 1]);
        open_.set(chain[i], old[i]);
        if (!least) continue;
        // Of ways to the same result the cheapest is enough.
        auto same = std::find_if(ways[i].begin(), ways[i].end(),
                                 [&](const Way& w) { return alike(w.state.out, least->state.out); });
        if (same == ways[i].end() || last)
          ways[i].push_back(std::move(*least));
        else if (least->cost < same->cost)
          *same = std::move(*least);
      }
      if (ways[i].empty()) return false;
    }
    size_t w = 0;
    for (size_t k = 1; k < ways.back().size(); ++k)
      if (ways.back()[k].cost < ways.back()[w].cost) w = k;
    for (size_t i = chain.size(); i-- > 0; w = ways[i][w].before) open_.set(chain[i], ways[i][w].state);
    // Nodes that are also neighbours outside the chain may have counted on each other's old layouts.
    if (open_.cost_around(chain) - cost_before < Cost{0, -kLeastGain * cost_before.s} && sources_hold(chain)) {
      for (size_t at : chain) mark(at);
      return true;
    }
    for (size_t i = 0; i < chain.size(); ++i) open_.set(chain[i], old[i]);
    return false;
  }

  template <class Specs>
  static bool alike(const Specs& a, const Specs& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

  // What the node may be along one axis, as it is now first, without more copies of inputs than the link's, and, of the
  // last node, without more bytes of results.
  std::vector<State> states_along(size_t at, int axis, const State& before, ValueId link, bool last) {
    const Known* k = open_.known(at);
    const Node& n = g_.nodes[at];
    std::vector<State> all{before};
    auto bytes = [&] {
      int64_t sum = open_.bytes_of_copies(at, link);
      for (size_t o = last ? 0 : 1; o < n.out.size(); ++o) sum += open_.bytes_of_variants(n.out[o]);
      return sum;
    };
    const int64_t most = bytes();
    for (const Signature& signature : k->signatures) {
      State s = before;
      if (!along(n, s, axis, signature, link) || (alike(s.in, before.in) && alike(s.out, before.out))) continue;
      open_.set(at, s);
      const bool larger = bytes() > most;
      open_.set(at, before);
      if (!larger && has_signature(*n.op, n.attrs, k->in, k->out, s.in, s.out)) all.push_back(std::move(s));
    }
    return all;
  }

  // Partial sums are read as such only where they are made.
  bool is_open_to(const Node& n, const State& s, ValueId link, const GlobalSpec* made, int axis) const {
    for (size_t i = 0; i < n.in.size(); ++i)
      if (s.in[i] && open_.source(n.in[i]) == link && s.in[i]->nd_sbp[axis].is_partial() &&
          !made->nd_sbp[axis].is_partial())
        return false;
    return true;
  }
  bool sources_hold(const std::vector<size_t>& chain) {
    for (size_t at : chain) {
      const State s = open_.layouts(at);
      const Node& n = g_.nodes[at];
      for (int a = 0; a < open_.now(n.out[0])->nd_sbp.size(); ++a) {
        for (size_t i = 0; i < n.in.size(); ++i)
          if (s.in[i] && !is_open_to(n, s, open_.source(n.in[i]), open_.now(open_.source(n.in[i])), a)) return false;
        // Those next to the chain, too.
        for (ValueId v : n.out)
          for (const OpenLayouts::Wanted& w : open_.readers(v))
            if (w.readers > 0 && w.spec->nd_sbp[a].is_partial() && !open_.now(v)->nd_sbp[a].is_partial()) return false;
      }
    }
    return true;
  }

  // A node is looked at again when something around it has changed.
  int64_t last_change(const Node& n) const {
    int64_t last = 0;
    for (ValueId v : n.in)
      if (v != kNoValue) last = std::max(last, at_index(changed_, open_.source(v)));
    for (ValueId v : n.out) last = std::max(last, at_index(changed_, v));
    return last;
  }
  void mark(size_t at) {
    const Node& n = g_.nodes[at];
    ++clock_;
    for (ValueId v : n.in)
      if (v != kNoValue) at_index(changed_, open_.source(v)) = clock_;
    for (ValueId v : n.out) at_index(changed_, v) = clock_;
  }

  Graph& g_;
  OpenLayouts open_;
  std::vector<std::vector<size_t>> chains_;
  std::unordered_map<size_t, int64_t> chain_seen_;  // by first node: when
  std::vector<int64_t> changed_, visited_;          // when: of each source, of each node
  int64_t clock_ = 1;
};

}  // namespace

void choose_sbps(Graph& g, const CompileOptions& options) {
  if (options.choose_sbp) Choose(g, options.keep_parameters).run();
}

}  // namespace holon::graph
