// Eager chooses a signature for each call by what its own inputs cost; here all readers of a result count as well,
// backward's among them.
//
// Boxings that ops need are left out here: an input of a node is then a value, its source, in a
// wanted layout, and what all boxings cost is the sum over the different pairs of the two. The signature of a node is
// changed, along one axis of the ranks, where that sum falls and the node holds no more bytes than before: of a chain
// of nodes together, where the best of all ways is found by dynamic programming, and node by node, with boxings carried
// over some nodes. Sweeps end when nothing is gained. A split parameter that stays where it is comes before any time.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/contract/compilation.h"
#include "holon/dispatch/signature.h"
#include "holon/graph/ir/signatures.h"
#include "holon/graph/passes/known_signatures.h"
#include "holon/graph/passes/node_layouts.h"
#include "holon/graph/passes/parameters.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

constexpr double kLeastGain = 0.02;  // of what the boxings around a node cost
constexpr int kMostSweeps = 4;
constexpr int kFar = 6;  // nodes that a boxing is carried through

using Cost = BoxingCost;
using Known = KnownSignatures::Of;

class Choose {
 public:
  Choose(Graph& g, bool keep_parameters) : g_(g), keep_(keep_parameters) {}

  void run() {
    if (!look()) return;
    auto* compilation = contract::Compilation::current();
    std::optional<bool> changed;
    if (compilation && compilation->is_frozen()) changed = take(*compilation);
    if (!changed) {
      std::vector<State> before;
      for (size_t i = 0; compilation && i < g_.nodes.size(); ++i) before.push_back(state_of(i));
      changed = improve_all();
      if (compilation && *changed) note(*compilation, before);
    }
    if (*changed) rebuild();
  }

 private:
  using State = NodeLayouts;
  struct Wanted {
    const GlobalSpec* spec;
    int32_t readers = 0, often = 0;  // of them, those in each micro-batch
  };

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
      if (!known(i)) continue;
      calls[i] = call_text(g_, g_.nodes[i], *known(i), before[i]);
      const State now = state_of(i);
      if (!alike(now.in, before[i].in) || !alike(now.out, before[i].out)) changed.insert(calls[i]);
    }
    for (size_t i = 0; i < before.size(); ++i)
      if (changed.contains(calls[i])) compilation.note(calls[i], layouts_text(state_of(i)));
  }
  // Takes what was noted; whether that changes anything. nullopt: it does not fit, and all is as before.
  std::optional<bool> take(contract::Compilation& compilation) {
    std::vector<std::pair<size_t, State>> done;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Known* k = known(i);
      if (!k) continue;
      const Node& n = g_.nodes[i];
      const State before = state_of(i);
      const auto taken = compilation.next(call_text(g_, n, *k, before));
      if (!taken) continue;
      const auto s = layouts_from(*taken, before);
      if (!s || !has_signature(*n.op, n.attrs, k->in, k->out, s->in, s->out)) {
        for (size_t d = done.size(); d-- > 0;) set(done[d].first, done[d].second);
        return std::nullopt;
      }
      done.emplace_back(i, before);
      set(i, *s);
    }
    return !done.empty();
  }

  const GlobalSpec*& now(ValueId v) { return at_index(now_, v); }
  ValueId source(ValueId v) const { return at_index(source_, v); }

  // Which boxings are free to go, and who wants what of whom. False: none is.
  bool look() {
    const size_t values = g_.values.size();
    fixed_.assign(values, false);
    for (ValueId v : g_.only().outputs) at_index(fixed_, v) = true;  // the user sees their layout
    for (size_t v = 0; v < values; ++v) {
      source_.push_back(static_cast<ValueId>(v));
      now_.push_back(g_.values[v].spec);
    }
    readers_.resize(values);
    made_by_ = producers(g_);
    reader_.assign(values, -1);
    changed_.assign(values, 1);
    visited_.assign(g_.nodes.size(), 0);
    known_of_.assign(g_.nodes.size(), nullptr);
    wants_.resize(g_.nodes.size());
    free_.assign(g_.nodes.size(), false);
    bool any = false;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (is_single_boxing(n) && !n.pinned && !at_index(fixed_, n.out[0]) &&
          now(n.in[0])->placement == now(n.out[0])->placement) {
        free_[i] = any = true;
        at_index(source_, n.out[0]) = source(n.in[0]);
        continue;
      }
      for (ValueId v : n.in) {
        // A boxing that stays takes its input as it is.
        const GlobalSpec* spec = v == kNoValue ? nullptr
            : is_single_boxing(n)              ? g_.value(n.out[0]).spec
                                               : g_.value(v).spec;
        wants_[i].push_back(spec);
        if (!spec) continue;
        want(source(v), spec, n, 1);
        if (NodeId& first = at_index(reader_, source(v)); first < 0) first = static_cast<NodeId>(i);
      }
    }
    for (ValueId v : g_.only().outputs)
      if (now(v)) want(source(v), now(v), Node(), 1);
    if (any) find_chains();
    return any;
  }

  // Paths in which each node reads what the one before makes, and is the first that does. Each node is in one.
  void find_chains() {
    std::vector<bool> taken(g_.nodes.size(), false);
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      std::vector<size_t> chain;
      for (size_t at = i; !taken[at] && known(at);) {
        taken[at] = true;
        chain.push_back(at);
        const NodeId next = at_index(reader_, g_.nodes[at].out[0]);
        if (next < 0 || !(now(g_.nodes[at].out[0])->placement == placement_of(to_size(next)))) break;
        at = to_size(next);
      }
      if (chain.size() > 1) chains_.push_back(std::move(chain));
    }
  }
  Placement placement_of(size_t at) {
    const Node& n = g_.nodes[at];
    return !n.out.empty() && now(n.out[0]) ? now(n.out[0])->placement : Placement();
  }

  void want(ValueId of, const GlobalSpec* spec, const Node& by, int32_t more) {
    auto& all = at_index(readers_, of);
    Wanted* found = nullptr;
    for (Wanted& w : all)
      if (w.spec == spec) found = &w;
    if (!found) found = &all.emplace_back(Wanted{spec});
    found->readers += more;
    // Gradients are redistributed when they are summed over the micro-batches.
    if (by.kind != NodeKind::kUpdate && is_per_batch(by.section)) found->often += more;
  }

  Cost cost(ValueId of) {
    const Value& v = g_.value(of);
    const GlobalSpec* from = now(of);
    const double seldom = 1.0 / std::max(1, g_.micro_batches);
    const bool parameter = at_index(of_parameter_, of);
    Cost sum;
    for (const Wanted& w : at_index(readers_, of)) {
      if (w.readers <= 0 || w.spec == from) continue;
      const bool moved = parameter && reads_peers(v, from, w.spec);
      const bool each = w.often > 0 && (moved || v.kind != ValueKind::kExternal);
      sum += {moved && keep_, boxing::cost(from, w.spec, v.shape, v.dtype) * (each ? 1 : seldom)};
    }
    return sum;
  }

  // Of what the node's kernel reads of other ranks' parts by itself.
  Cost cost_inside(size_t at) {
    const Node& n = g_.nodes[at];
    Cost sum;
    if (!n.op || !n.op->communicates) return sum;
    const Known* k = known(at);
    if (!k) return sum;
    const State s = state_of(at);
    const auto as = read_as(k->signatures, s.in, s.out);
    const double often = is_per_batch(n.section) ? 1 : 1.0 / std::max(1, g_.micro_batches);
    for (size_t i = 0; i < as.size(); ++i)
      if (s.in[i] && as[i] != s.in[i])
        sum += {false, boxing::cost(s.in[i], as[i], k->in[i].shape, k->in[i].dtype) * often};
    return sum;
  }

  // Of all boxings that the node's signature has a part in.
  Cost cost_around(size_t at) {
    const Node& n = g_.nodes[at];
    Cost sum = cost_inside(at);
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (n.in[i] == kNoValue) continue;
      bool counted = false;
      for (size_t k = 0; k < i; ++k) counted |= n.in[k] != kNoValue && source(n.in[k]) == source(n.in[i]);
      if (!counted) sum += cost(source(n.in[i]));
    }
    for (ValueId v : n.out) sum += cost(v);
    return sum;
  }

  int64_t bytes_as(ValueId id, const GlobalSpec* spec) const {
    Value v = g_.value(id);
    v.spec = spec;
    return local_bytes(v);
  }
  // Of a value and its copies in other layouts.
  int64_t bytes_of_variants(ValueId of) {
    if (!now(of)) return 0;
    int64_t bytes = bytes_as(of, now(of));
    for (const Wanted& w : at_index(readers_, of))
      if (w.readers > 0 && reads_peers(g_.value(of), now(of), w.spec)) bytes += bytes_as(of, w.spec);
    return bytes;
  }
  // Of copies of the node's inputs that are made for it alone. link: a source that is not counted.
  int64_t bytes_of_copies(size_t at, ValueId link = kNoValue) {
    const Node& n = g_.nodes[at];
    int64_t bytes = 0;
    for (size_t i = 0; i < n.in.size(); ++i) {
      const GlobalSpec* spec = wants_[at][i];
      if (!spec || source(n.in[i]) == link || !reads_peers(g_.value(source(n.in[i])), now(source(n.in[i])), spec))
        continue;
      int32_t others = 0;
      for (const Wanted& w : at_index(readers_, source(n.in[i])))
        if (w.spec == spec) others = w.readers;
      for (size_t k = 0; k < n.in.size(); ++k) others -= wants_[at][k] == spec && source(n.in[k]) == source(n.in[i]);
      if (others <= 0) bytes += bytes_as(n.in[i], spec);
    }
    return bytes;
  }
  int64_t held(size_t at) {
    int64_t bytes = bytes_of_copies(at);
    for (ValueId v : g_.nodes[at].out) bytes += bytes_of_variants(v);
    return bytes;
  }

  void set(size_t at, const State& s) {
    const Node& n = g_.nodes[at];
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (!s.in[i] || s.in[i] == wants_[at][i]) continue;
      want(source(n.in[i]), wants_[at][i], n, -1);
      want(source(n.in[i]), s.in[i], n, 1);
      wants_[at][i] = s.in[i];
    }
    for (size_t o = 0; o < n.out.size(); ++o) now(n.out[o]) = s.out[o];
  }

  bool is_redistributed(size_t at) {
    const Node& n = g_.nodes[at];
    for (size_t i = 0; i < wants_[at].size(); ++i)  // a free boxing has none
      if (wants_[at][i] && now(source(n.in[i])) != wants_[at][i]) return true;
    for (ValueId v : n.out)
      for (const Wanted& w : at_index(readers_, v))
        if (w.readers > 0 && w.spec != now(v)) return true;
    return false;
  }

  // The state with the signature along one axis of the ranks; false: it cannot be had. open: a source whose layout is
  // not settled.
  bool along(const Node& n, State& s, int axis, const Signature& signature, ValueId open = kNoValue) {
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (!s.in[i]) continue;
      // An op never makes partial sums out of whole values by itself.
      if (signature.in[i].is_partial() && source(n.in[i]) != open && !now(source(n.in[i]))->nd_sbp[axis].is_partial())
        return false;
      if (!(s.in[i]->nd_sbp[axis] == signature.in[i]))
        s.in[i] = intern_spec(s.in[i]->placement, s.in[i]->nd_sbp.with(axis, signature.in[i]));
    }
    for (size_t o = 0; o < n.out.size(); ++o)
      if (!(s.out[o]->nd_sbp[axis] == signature.out[o]))
        s.out[o] = intern_spec(s.out[o]->placement, s.out[o]->nd_sbp.with(axis, signature.out[o]));
    return !(signature.even_units && signature.even_units % s.out[0]->placement.hierarchy()[axis]);
  }

  // nullptr: the node's signature is not to be changed.
  const Known* known(size_t at) {
    const Node& n = g_.nodes[at];
    if (!is_op(n) || n.pinned || n.op->schema.n_inputs == 0 || !now(n.out[0])) return nullptr;
    for (ValueId v : n.out)
      if (at_index(fixed_, v)) return nullptr;
    if (known_of_[at]) return known_of_[at];
    return known_of_[at] = &known_.of(g_, n);
  }

  State state_of(size_t at) {
    State s;
    for (auto* spec : wants_[at]) s.in.push_back(spec);
    for (ValueId v : g_.nodes[at].out) s.out.push_back(now(v));
    return s;
  }

  // The state of the least cost among those that one axis of the ranks can change and `allowed` lets through; what it
  // changes the cost of all boxings by.
  template <class Allowed>
  std::optional<std::pair<State, Cost>> best(size_t at, Allowed allowed) {
    const Known* k = known(at);
    if (!k) return {};
    const Node& n = g_.nodes[at];
    const State before = state_of(at);
    const Cost cost_before = cost_around(at);
    const int64_t held_before = held(at);
    std::optional<std::pair<State, Cost>> found;
    for (int a = 0; a < now(n.out[0])->placement.hierarchy().size(); ++a)
      for (const Signature& signature : k->signatures) {
        State tried = before;
        if (!along(n, tried, a, signature) || !allowed(tried)) continue;
        set(at, tried);
        const bool larger = held(at) > held_before;
        const Cost gain = cost_around(at) - cost_before;
        set(at, before);
        if (larger || (found && !(gain < found->second))) continue;
        if (has_signature(*n.op, n.attrs, k->in, k->out, tried.in, tried.out)) found = {tried, gain};
      }
    return found;
  }

  bool improve(size_t at) {
    if (!is_redistributed(at) || !known(at)) return false;
    const Node& n = g_.nodes[at];
    if (visited_[at] > last_change(n)) return false;
    visited_[at] = ++clock_;
    const Cost least{0, -kLeastGain * cost_around(at).s};
    auto one = best(at, [](const State&) { return true; });
    if (one && one->second < least) {
      set(at, one->first);
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
      if (!known(at)) break;
      const GlobalSpec* to = nullptr;
      size_t input = 0;
      if (up) {
        for (const Wanted& w : at_index(readers_, n.out[0]))
          if (w.readers > 0 && w.spec != now(n.out[0])) to = w.spec;
      } else {
        for (size_t i = 0; i < n.in.size() && !to; ++i)
          if (wants_[at][i] && now(source(n.in[i])) != wants_[at][i]) {
            to = now(source(n.in[i]));
            input = i;
          }
      }
      if (!to) break;
      auto next = best(at, [&](const State& s) { return (up ? s.out[0] : s.in[input]) == to; });
      if (!next) break;
      path.emplace_back(at, state_of(at));
      set(at, next->first);
      sum += next->second;
      if (sum < lowest) {
        lowest = sum;
        keep = path.size();
      }
      // On to where the boxing is now.
      NodeId on = -1;
      if (up) {
        for (size_t i = 0; i < n.in.size() && on < 0; ++i)
          if (wants_[at][i] && now(source(n.in[i])) != wants_[at][i]) on = at_index(made_by_, source(n.in[i]));
      } else {
        on = at_index(reader_, n.out[0]);
      }
      if (on < 0) break;
      at = to_size(on);
    }
    for (size_t i = path.size(); i-- > keep;) set(path[i].first, path[i].second);
    for (size_t i = 0; i < keep; ++i) mark(path[i].first);
    return keep > 0;
  }

  // Of all boxings that the nodes' signatures have a part in.
  Cost cost_around(const std::vector<size_t>& nodes) {
    std::vector<ValueId> all;
    for (size_t at : nodes) {
      for (ValueId v : g_.nodes[at].in)
        if (v != kNoValue) all.push_back(source(v));
      for (ValueId v : g_.nodes[at].out) all.push_back(v);
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    Cost sum;
    for (size_t at : nodes) sum += cost_inside(at);
    for (ValueId v : all) sum += cost(v);
    return sum;
  }

  // Chooses the signatures of a chain's nodes together, for each axis of the ranks. What is next to it stays as it is:
  // where that is not of the chain itself, nothing is cheaper.
  bool improve_chain(const std::vector<size_t>& chain) {
    if (std::none_of(chain.begin(), chain.end(), [&](size_t at) { return is_redistributed(at); })) return false;
    int64_t changed = 0;
    for (size_t at : chain) changed = std::max(changed, last_change(g_.nodes[at]));
    int64_t& seen = chain_seen_[chain[0]];
    if (seen > changed) return false;
    seen = ++clock_;
    bool gained = false;
    for (int a = 0; a < now(g_.nodes[chain[0]].out[0])->placement.hierarchy().size(); ++a)
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
    for (size_t at : chain) old.push_back(state_of(at));
    const Cost cost_before = cost_around(chain);
    for (size_t i = 0; i < chain.size(); ++i) {
      const Node& n = g_.nodes[chain[i]];
      const bool last = i + 1 == chain.size();
      const ValueId link = i ? g_.nodes[chain[i - 1]].out[0] : kNoValue;
      const int64_t most = i ? bytes_of_variants(link) : 0;
      for (State& s : states_along(chain[i], axis, old[i], link, last)) {
        set(chain[i], s);
        Cost beside = cost_beside(n, link, last) + cost_inside(chain[i]);
        std::optional<Way> least;
        if (!i) least = Way{s, beside};
        for (size_t w = 0; i && w < ways[i - 1].size(); ++w) {
          const Way& before = ways[i - 1][w];
          if (!is_open_to(n, s, link, before.state.out[0], axis)) continue;
          set(chain[i - 1], before.state);
          if (bytes_of_variants(link) > most) continue;
          const Cost sum = before.cost + beside + cost(link);
          if (!least || sum < least->cost) least = Way{s, sum, w};
        }
        if (i) set(chain[i - 1], old[i - 1]);
        set(chain[i], old[i]);
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
    for (size_t i = chain.size(); i-- > 0; w = ways[i][w].before) set(chain[i], ways[i][w].state);
    // Nodes that are also neighbours outside the chain may have counted on each other's old layouts.
    if (cost_around(chain) - cost_before < Cost{0, -kLeastGain * cost_before.s} && sources_hold(chain)) {
      for (size_t at : chain) mark(at);
      return true;
    }
    for (size_t i = 0; i < chain.size(); ++i) set(chain[i], old[i]);
    return false;
  }

  // Of the boxings around a node that are not those of its source `link`, nor, unless it is the last, of its result.
  Cost cost_beside(const Node& n, ValueId link, bool last) {
    Cost sum;
    for (size_t i = 0; i < n.in.size(); ++i) {
      if (n.in[i] == kNoValue || source(n.in[i]) == link) continue;
      bool counted = false;
      for (size_t k = 0; k < i; ++k) counted |= n.in[k] != kNoValue && source(n.in[k]) == source(n.in[i]);
      if (!counted) sum += cost(source(n.in[i]));
    }
    for (size_t o = last ? 0 : 1; o < n.out.size(); ++o) sum += cost(n.out[o]);
    return sum;
  }

  template <class Specs>
  static bool alike(const Specs& a, const Specs& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

  // What the node may be along one axis, as it is now first, without more copies of inputs than the link's, and, of the
  // last node, without more bytes of results.
  std::vector<State> states_along(size_t at, int axis, const State& before, ValueId link, bool last) {
    const Known* k = known(at);
    const Node& n = g_.nodes[at];
    std::vector<State> all{before};
    auto bytes = [&] {
      int64_t sum = bytes_of_copies(at, link);
      for (size_t o = last ? 0 : 1; o < n.out.size(); ++o) sum += bytes_of_variants(n.out[o]);
      return sum;
    };
    const int64_t most = bytes();
    for (const Signature& signature : k->signatures) {
      State s = before;
      if (!along(n, s, axis, signature, link) || (alike(s.in, before.in) && alike(s.out, before.out))) continue;
      set(at, s);
      const bool larger = bytes() > most;
      set(at, before);
      if (!larger && has_signature(*n.op, n.attrs, k->in, k->out, s.in, s.out)) all.push_back(std::move(s));
    }
    return all;
  }

  // Partial sums are read as such only where they are made.
  bool is_open_to(const Node& n, const State& s, ValueId link, const GlobalSpec* made, int axis) const {
    for (size_t i = 0; i < n.in.size(); ++i)
      if (s.in[i] && source(n.in[i]) == link && s.in[i]->nd_sbp[axis].is_partial() && !made->nd_sbp[axis].is_partial())
        return false;
    return true;
  }
  bool sources_hold(const std::vector<size_t>& chain) {
    for (size_t at : chain) {
      const State s = state_of(at);
      const Node& n = g_.nodes[at];
      for (int a = 0; a < now(n.out[0])->nd_sbp.size(); ++a) {
        for (size_t i = 0; i < n.in.size(); ++i)
          if (s.in[i] && !is_open_to(n, s, source(n.in[i]), now(source(n.in[i])), a)) return false;
        // Those next to the chain, too.
        for (ValueId v : n.out)
          for (const Wanted& w : at_index(readers_, v))
            if (w.readers > 0 && w.spec->nd_sbp[a].is_partial() && !now(v)->nd_sbp[a].is_partial()) return false;
      }
    }
    return true;
  }

  // A node is looked at again when something around it has changed.
  int64_t last_change(const Node& n) const {
    int64_t last = 0;
    for (ValueId v : n.in)
      if (v != kNoValue) last = std::max(last, at_index(changed_, source(v)));
    for (ValueId v : n.out) last = std::max(last, at_index(changed_, v));
    return last;
  }
  void mark(size_t at) {
    const Node& n = g_.nodes[at];
    ++clock_;
    for (ValueId v : n.in)
      if (v != kNoValue) at_index(changed_, source(v)) = clock_;
    for (ValueId v : n.out) at_index(changed_, v) = clock_;
  }

  // Puts boxings where sources are not as they are wanted, one for all readers of a layout that it can serve.
  void rebuild() {
    struct Key {
      ValueId source;
      const GlobalSpec* spec;
      int16_t stage;
      Section section;
      bool operator==(const Key&) const = default;
    };
    struct HashKey {
      size_t operator()(const Key& k) const { return hash_words(k.source, k.spec, k.stage, k.section); }
    };
    std::unordered_map<Key, ValueId, HashKey> boxings;
    Rewrite edit(g_);
    for (size_t v = 0; v < now_.size(); ++v) g_.values[v].spec = now_[v];
    for (size_t i = 0; i < wants_.size(); ++i) {
      if (free_[i]) {
        // It stays where it is if it still is of use: dead code would count as a reader until it is dropped.
        Node& n = g_.nodes[i];
        n.in[0] = source(n.in[0]);
        bool useful = false;
        for (const Wanted& w : at_index(readers_, n.in[0]))
          useful |= w.readers > 0 && w.spec == now(n.out[0]) && w.spec != now(n.in[0]);
        if (!useful || !boxings.try_emplace({n.in[0], now(n.out[0]), n.stage, n.section}, n.out[0]).second)
          edit.drop(static_cast<NodeId>(i));
        continue;
      }
      for (size_t k = 0; k < g_.nodes[i].in.size(); ++k) {
        Node& n = g_.nodes[i];
        if (n.in[k] == kNoValue || !wants_[i][k]) continue;
        const ValueId from = source(n.in[k]);
        if (is_single_boxing(n) || g_.value(from).spec == wants_[i][k]) {
          n.in[k] = from;
          continue;
        }
        const NodeId by = at_index(made_by_, from);
        const bool gradient = n.kind == NodeKind::kUpdate && by >= 0;  // it moves as soon as it is there
        const Node& like = gradient ? at_index(g_.nodes, by) : n;
        ValueId redistributed = kNoValue;
        for (int s = 0; s <= static_cast<int>(n.section) && redistributed == kNoValue; ++s) {
          const auto section = static_cast<Section>(s);
          if (n.section == Section::kOnceAfter && !gradient && g_.micro_batches > 1 && is_per_batch(section)) continue;
          auto it = boxings.find({from, wants_[i][k], like.stage, section});
          if (it != boxings.end()) redistributed = it->second;
        }
        if (redistributed == kNoValue) {
          redistributed = edit.value_like(from, wants_[i][k]);
          boxings[{from, wants_[i][k], like.stage, like.section}] = redistributed;
          Node boxing = make_boxing(like, from, redistributed);
          if (gradient)
            edit.insert_after(by, std::move(boxing));
          else
            edit.insert_before(static_cast<NodeId>(i), std::move(boxing));
        }
        g_.nodes[i].in[k] = redistributed;
      }
    }
    edit.commit();
  }

  Graph& g_;
  const bool keep_;                                              // parameters as they are stored
  const std::vector<bool> of_parameter_ = parameter_values(g_);  // by value
  std::vector<std::vector<size_t>> chains_;
  std::unordered_map<size_t, int64_t> chain_seen_;  // by first node: when
  std::vector<ValueId> source_;                     // of each value, through free boxings
  std::vector<const GlobalSpec*> now_;              // of each value
  std::vector<bool> fixed_, free_;                  // by value, by node
  std::vector<std::vector<Wanted>> readers_;        // of each source
  std::vector<NodeId> made_by_, reader_;            // of each value; reader_: the first one
  KnownSignatures known_;
  std::vector<const Known*> known_of_;      // of each node
  std::vector<int64_t> changed_, visited_;  // when: of each source, of each node
  int64_t clock_ = 1;
  std::vector<SmallVec<const GlobalSpec*, 4>> wants_;  // of each node's inputs
};

}  // namespace

void choose_sbps(Graph& g, const CompileOptions& options) {
  if (options.choose_sbp) Choose(g, options.keep_parameters).run();
}

}  // namespace holon::graph
