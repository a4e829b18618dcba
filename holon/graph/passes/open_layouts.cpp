#include "holon/graph/passes/open_layouts.h"

#include <algorithm>
#include <unordered_map>

#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/dispatch/signature.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

bool OpenLayouts::look() {
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
  return any;
}

void OpenLayouts::want(ValueId of, const GlobalSpec* spec, const Node& by, int32_t more) {
  auto& all = at_index(readers_, of);
  Wanted* found = nullptr;
  for (Wanted& w : all)
    if (w.spec == spec) found = &w;
  if (!found) found = &all.emplace_back(Wanted{spec});
  found->readers += more;
  // Gradients are redistributed when they are summed over the micro-batches.
  if (by.kind != NodeKind::kUpdate && is_per_batch(by.section)) found->often += more;
}

const KnownSignatures::Of* OpenLayouts::known(size_t at) {
  const Node& n = g_.nodes[at];
  if (!is_op(n) || n.pinned || n.op->schema.n_inputs == 0 || !now(n.out[0])) return nullptr;
  for (ValueId v : n.out)
    if (at_index(fixed_, v)) return nullptr;
  if (known_of_[at]) return known_of_[at];
  return known_of_[at] = &known_.of(g_, n);
}

NodeLayouts OpenLayouts::layouts(size_t at) const {
  NodeLayouts s;
  for (auto* spec : wants_[at]) s.in.push_back(spec);
  for (ValueId v : g_.nodes[at].out) s.out.push_back(now(v));
  return s;
}

BoxingCost OpenLayouts::cost(ValueId of) const {
  const Value& v = g_.value(of);
  const GlobalSpec* from = now(of);
  const double seldom = 1.0 / std::max(1, g_.micro_batches);
  const bool parameter = at_index(of_parameter_, of);
  BoxingCost sum;
  for (const Wanted& w : at_index(readers_, of)) {
    if (w.readers <= 0 || w.spec == from) continue;
    const bool moved = parameter && reads_peers(v, from, w.spec);
    const bool each = w.often > 0 && (moved || v.kind != ValueKind::kExternal);
    sum += {moved && keep_, boxing::cost(from, w.spec, v.shape, v.dtype) * (each ? 1 : seldom)};
  }
  return sum;
}

BoxingCost OpenLayouts::cost_inside(size_t at) {
  const Node& n = g_.nodes[at];
  BoxingCost sum;
  if (!n.op || !n.op->communicates) return sum;
  const KnownSignatures::Of* k = known(at);
  if (!k) return sum;
  const NodeLayouts s = layouts(at);
  const auto as = read_as(k->signatures, s.in, s.out);
  const double often = is_per_batch(n.section) ? 1 : 1.0 / std::max(1, g_.micro_batches);
  for (size_t i = 0; i < as.size(); ++i)
    if (s.in[i] && as[i] != s.in[i])
      sum += {false, boxing::cost(s.in[i], as[i], k->in[i].shape, k->in[i].dtype) * often};
  return sum;
}

BoxingCost OpenLayouts::cost_around(size_t at) {
  const Node& n = g_.nodes[at];
  BoxingCost sum = cost_inside(at) + cost_of_inputs(n, kNoValue);
  for (ValueId v : n.out) sum += cost(v);
  return sum;
}

int64_t OpenLayouts::bytes_as(ValueId id, const GlobalSpec* spec) const {
  Value v = g_.value(id);
  v.spec = spec;
  return local_bytes(v);
}

int64_t OpenLayouts::bytes_of_variants(ValueId of) const {
  if (!now(of)) return 0;
  int64_t bytes = bytes_as(of, now(of));
  for (const Wanted& w : at_index(readers_, of))
    if (w.readers > 0 && reads_peers(g_.value(of), now(of), w.spec)) bytes += bytes_as(of, w.spec);
  return bytes;
}

int64_t OpenLayouts::bytes_of_copies(size_t at, ValueId link) const {
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

int64_t OpenLayouts::held(size_t at) const {
  int64_t bytes = bytes_of_copies(at);
  for (ValueId v : g_.nodes[at].out) bytes += bytes_of_variants(v);
  return bytes;
}

void OpenLayouts::set(size_t at, const NodeLayouts& s) {
  const Node& n = g_.nodes[at];
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (!s.in[i] || s.in[i] == wants_[at][i]) continue;
    want(source(n.in[i]), wants_[at][i], n, -1);
    want(source(n.in[i]), s.in[i], n, 1);
    wants_[at][i] = s.in[i];
  }
  for (size_t o = 0; o < n.out.size(); ++o) at_index(now_, n.out[o]) = s.out[o];
}

bool OpenLayouts::is_redistributed(size_t at) const {
  const Node& n = g_.nodes[at];
  for (size_t i = 0; i < wants_[at].size(); ++i)  // a free boxing has none
    if (wants_[at][i] && now(source(n.in[i])) != wants_[at][i]) return true;
  for (ValueId v : n.out)
    for (const Wanted& w : at_index(readers_, v))
      if (w.readers > 0 && w.spec != now(v)) return true;
  return false;
}

BoxingCost OpenLayouts::cost_around(const std::vector<size_t>& nodes) {
  std::vector<ValueId> all;
  for (size_t at : nodes) {
    for (ValueId v : g_.nodes[at].in)
      if (v != kNoValue) all.push_back(source(v));
    for (ValueId v : g_.nodes[at].out) all.push_back(v);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  BoxingCost sum;
  for (size_t at : nodes) sum += cost_inside(at);
  for (ValueId v : all) sum += cost(v);
  return sum;
}

BoxingCost OpenLayouts::cost_beside(const Node& n, ValueId link, bool last) const {
  BoxingCost sum = cost_of_inputs(n, link);
  for (size_t o = last ? 0 : 1; o < n.out.size(); ++o) sum += cost(n.out[o]);
  return sum;
}

// Of each source once.
BoxingCost OpenLayouts::cost_of_inputs(const Node& n, ValueId without) const {
  BoxingCost sum;
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (n.in[i] == kNoValue || source(n.in[i]) == without) continue;
    bool counted = false;
    for (size_t k = 0; k < i; ++k) counted |= n.in[k] != kNoValue && source(n.in[k]) == source(n.in[i]);
    if (!counted) sum += cost(source(n.in[i]));
  }
  return sum;
}

void OpenLayouts::rebuild() {
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

}  // namespace holon::graph
