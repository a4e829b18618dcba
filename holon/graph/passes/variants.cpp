#include "holon/graph/passes/variants.h"

#include <algorithm>
#include <unordered_map>

#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

bool same_attrs(const Attrs& a, const Attrs& b) {
  return std::ranges::equal(a.words(), b.words()) && std::ranges::equal(a.starts(), b.starts());
}

// Adds one variant to the graph that begins as the first.
class Join {
 public:
  Join(Graph& g, const Graph& from, int variant)
      : g_(g),
        f_(from),
        variant_(static_cast<int8_t>(variant)),
        g_made_by_(producers(g)),
        f_made_by_(producers(from)),
        value_(from.values.size(), kNoValue) {}

  // What is missing for it: the name of a parameter, or "" for nothing.
  std::string run() {
    add_externals();
    add_inputs();
    add_what_is_once_before();
    if (std::string name = match_updates(); !name.empty()) return name;
    for (auto& n : f_.nodes)
      if (is_per_batch(n.section)) add(n);
    for (size_t o = 0; o < f_.only().outputs.size(); ++o) {
      const ValueId v = f_.only().outputs[o];
      const Node* by = producer(f_, f_made_by_, v);
      const bool once = by && by->section == Section::kOnceAfter;  // what is made of the norm of the gradients
      if (of(v) == kNoValue && !(once && match(g_.of_variant[0].outputs[o], v))) return "an output";
      g_.of_variant.back().outputs.push_back(of(v));
    }
    g_.local_draws = std::max(g_.local_draws, f_.local_draws);
    g_.global_draws = std::max(g_.global_draws, f_.global_draws);
    return "";
  }

 private:
  ValueId& of(ValueId v) { return at_index(value_, v); }
  const Node* producer(const Graph& g, const std::vector<NodeId>& made_by, ValueId v) const {
    const NodeId by = at_index(made_by, v);
    return by < 0 ? nullptr : &at_index(g.nodes, by);
  }

  void add_externals() {
    std::unordered_map<const TensorImpl*, size_t> known;
    for (size_t e = 0; e < g_.externals.size(); ++e) known.emplace(g_.externals[e].tensor.impl(), e);
    for (auto& x : f_.externals) {
      auto [it, fresh] = known.try_emplace(x.tensor.impl(), g_.externals.size());
      if (fresh) {
        External mine = x;
        Value v = f_.value(x.value);
        v.index = static_cast<int32_t>(g_.externals.size());
        mine.value = g_.add_value(v);
        g_.externals.push_back(std::move(mine));
      }
      External& mine = g_.externals[it->second];
      mine.assigned |= x.assigned;
      mine.parameter |= x.parameter;
      external_.push_back(static_cast<int32_t>(it->second));
      of(x.value) = mine.value;
    }
  }

  void add_inputs() {
    g_.of_variant.push_back({{}, {}, f_.only().row_parts});
    for (ValueId v : f_.only().inputs) {
      of(v) = g_.add_value(f_.value(v));
      g_.of_variant.back().inputs.push_back(of(v));
    }
  }

  // What reads the same is the same: a weight is cast, gathered or transposed once for all variants.
  void add_what_is_once_before() {
    std::unordered_multimap<uint64_t, size_t> known;
    auto key = [](const Node& n, auto&& input) {
      Hasher h;
      h.add(n.kind);
      h.add(n.op);
      for (ValueId v : n.in) h.add(v == kNoValue ? v : input(v));
      return h.value();
    };
    for (size_t i = 0; i < g_.nodes.size(); ++i)
      if (g_.nodes[i].section == Section::kOnceBefore) known.emplace(key(g_.nodes[i], [](ValueId v) { return v; }), i);
    for (auto& n : f_.nodes) {
      if (n.section != Section::kOnceBefore) continue;
      auto [begin, end] = known.equal_range(key(n, [&](ValueId v) { return of(v); }));
      auto found = std::find_if(begin, end, [&](auto& e) { return serves(g_.nodes[e.second], n); });
      if (found == end) {
        add(n);
        g_.nodes.back().variant = 0;
        continue;
      }
      for (size_t o = 0; o < n.out.size(); ++o) of(n.out[o]) = g_.nodes[found->second].out[o];
    }
  }

  bool alike(const Value& a, const Value& b) const {
    return a.spec == b.spec && a.dtype == b.dtype && a.shape == b.shape;
  }
  bool serves(const Node& mine, const Node& other) {
    if (mine.kind != other.kind || mine.op != other.op || mine.stage != other.stage ||
        mine.in.size() != other.in.size() || mine.out.size() != other.out.size() ||
        !same_attrs(mine.attrs, other.attrs) || mine.kind == NodeKind::kFused)
      return false;
    for (size_t k = 0; k < mine.in.size(); ++k)
      if ((other.in[k] == kNoValue ? kNoValue : of(other.in[k])) != mine.in[k]) return false;
    for (size_t o = 0; o < mine.out.size(); ++o)
      if (!alike(g_.value(mine.out[o]), f_.value(other.out[o]))) return false;
    return true;
  }

  // A fused node's target is its body, which is another one in each variant.
  bool same_target(const Node& mine, const Node& other) const {
    if (mine.kind != NodeKind::kFused) return mine.target == other.target;
    const FusedBody &a = at_index(g_.bodies, mine.target), &b = at_index(f_.bodies, other.target);
    return std::ranges::equal(a.results, b.results) &&
        std::ranges::equal(a.parts, b.parts, [](const FusedPart& x, const FusedPart& y) {
             return x.op == y.op && same_attrs(x.attrs, y.attrs) && std::ranges::equal(x.in, y.in);
           });
  }

  // From each update back to the sums that it is made of: the other variant's are the same ones.
  std::string match_updates() {
    const size_t nodes = g_.nodes.size();
    std::unordered_map<int32_t, const Node*> mine;
    for (size_t i = 0; i < nodes; ++i)
      if (g_.nodes[i].kind == NodeKind::kUpdate) mine[g_.nodes[i].target] = &g_.nodes[i];
    for (auto& n : f_.nodes) {
      if (n.kind != NodeKind::kUpdate) continue;
      auto it = mine.find(n.target);
      if (it == mine.end() || it->second->in.size() != n.in.size()) return "an optimizer's group";
      for (size_t k = 0; k < n.in.size(); ++k)
        if (!match(it->second->in[k], n.in[k]))
          return at_index(g_.externals, at_index(g_.updates, n.target).externals[k]).name;
    }
    return "";
  }

  // Whether b, which is there after the micro-batches, is a. The sums on the way take a's place.
  bool match(ValueId first, ValueId second) {
    std::vector<std::pair<ValueId, ValueId>> open{{first, second}};
    while (!open.empty()) {
      auto [a, b] = open.back();
      open.pop_back();
      if (a == kNoValue || b == kNoValue) {
        if (a != b) return false;
        continue;
      }
      if (of(b) == a) continue;
      if (of(b) != kNoValue || !alike(g_.value(a), f_.value(b))) return false;
      const Node *mine = producer(g_, g_made_by_, a), *other = producer(f_, f_made_by_, b);
      if (!mine || !other || mine->kind != other->kind) return false;
      if (mine->kind == NodeKind::kAccumulate) {
        if (mine->stage != other->stage) return false;
        of(b) = a;
        continue;
      }
      if (mine->section != Section::kOnceAfter || other->section != Section::kOnceAfter || mine->op != other->op ||
          mine->in.size() != other->in.size() || mine->out.size() != other->out.size() || !same_target(*mine, *other) ||
          !same_attrs(mine->attrs, other->attrs))
        return false;
      for (size_t o = 0; o < mine->out.size(); ++o) {
        if ((mine->out[o] == a) != (other->out[o] == b)) return false;
        of(other->out[o]) = mine->out[o];
      }
      for (size_t k = 0; k < mine->in.size(); ++k) open.emplace_back(mine->in[k], other->in[k]);
    }
    return true;
  }

  int32_t named(std::vector<std::string>& names, const std::string& name) {
    auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) it = names.insert(names.end(), name);
    return static_cast<int32_t>(it - names.begin());
  }

  void add(const Node& n) {
    Node mine = n;
    mine.variant = variant_;
    mine.scope = scope(n.scope);
    mine.site = site(n.site);
    for (ValueId& v : mine.in)
      if (v != kNoValue) v = of(v);
    for (ValueId& v : mine.out) {
      ValueId& at = of(v);
      if (at == kNoValue) at = g_.add_value(f_.value(v));  // a sum is there already
      v = at;
    }
    if (n.kind == NodeKind::kFused) {
      mine.target = static_cast<int32_t>(g_.bodies.size());
      g_.bodies.push_back(at_index(f_.bodies, n.target));
    }
    if (n.kind == NodeKind::kAssign) mine.target = at_index(external_, n.target);
    g_.nodes.push_back(std::move(mine));
  }

  int32_t scope(int32_t i) {
    auto [it, fresh] = scopes_.try_emplace(i, 0);
    if (fresh) it->second = named(g_.scopes, at_index(f_.scopes, i));
    return it->second;
  }
  int32_t site(int32_t i) {
    auto [it, fresh] = sites_.try_emplace(i, 0);
    if (fresh) it->second = named(g_.sites, at_index(f_.sites, i));
    return it->second;
  }

  Graph& g_;
  const Graph& f_;
  const int8_t variant_;
  const std::vector<NodeId> g_made_by_;
  const std::vector<NodeId> f_made_by_;
  std::vector<ValueId> value_;     // of the other variant's values: those here
  std::vector<int32_t> external_;  // of the other variant's externals
  std::unordered_map<int32_t, int32_t> scopes_, sites_;
};

// An output that depends on the number of rows alone is there once for each variant: it becomes one of each
// micro-batch.
void separate_outputs(Graph& g) {
  const std::vector<NodeId> made_by = producers(g);
  for (size_t o = 0; o < g.n_outputs(); ++o) {
    const bool alike = std::all_of(g.of_variant.begin(), g.of_variant.end(),
                                   [&](auto& variant) { return variant.outputs[o] == g.outputs_of(0)[o]; });
    for (int f = 0; f < g.variants() && !alike; ++f) {
      ValueId& v = at_index(g.of_variant, f).outputs[o];
      const NodeId by = at_index(made_by, v);
      if (g.value(v).kind == ValueKind::kInput) continue;
      if (by >= 0 && is_per_batch(at_index(g.nodes, by).section)) continue;
      Node n;
      if (by >= 0) n = node_like(at_index(g.nodes, by), NodeKind::kRelabel);
      n.kind = NodeKind::kRelabel;
      n.section = Section::kForward;
      n.variant = static_cast<int8_t>(f);
      n.in.push_back(v);
      Value seen = g.value(v);
      seen.kind = ValueKind::kNode;
      seen.index = -1;
      v = g.add_value(seen);
      n.out.push_back(v);
      g.nodes.push_back(std::move(n));
    }
  }
}

}  // namespace

std::optional<Graph> join_variants(const std::vector<Graph>& variants, std::vector<int8_t> variant_of,
                                   std::string* missing) {
  Graph g = variants[0];
  for (size_t f = 1; f < variants.size(); ++f)
    if (std::string name = Join(g, variants[f], static_cast<int>(f)).run(); !name.empty()) {
      if (missing) *missing = name;
      return std::nullopt;
    }
  separate_outputs(g);
  g.variant_of = std::move(variant_of);
  return g;
}

Graph only_variant(const Graph& g, int variant) {
  Graph one = g;
  std::erase_if(one.nodes, [&](const Node& n) { return is_per_batch(n.section) && n.variant != variant; });
  for (auto& n : one.nodes) n.variant = 0;
  one.of_variant = {at_index(g.of_variant, variant)};
  one.variant_of.clear();
  return one;
}

}  // namespace holon::graph
