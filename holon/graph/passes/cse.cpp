// Common subexpressions, by a table of what has been computed.
#include <algorithm>
#include <unordered_map>

#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

bool mergeable(const Node& n) {
  // What a pass has pinned is there to be computed again; what the user requested (forward) may serve others who ask
  // for the same.
  if (n.pinned && n.section != Section::kForward) return false;
  if (is_op(n)) return !n.op->random || n.draw >= 0 || n.op->counter_attr < 0 || n.attrs.has(n.op->counter_attr);
  // What has a body, or writes somewhere, is more than its inputs say.
  return def(n.kind).target == Target::kNone && n.in.size() == 1;
}

// Whether what the earlier node makes is there for the later one's readers.
bool serves(const Graph& g, const Node& earlier, const Node& later) {
  if (earlier.stage != later.stage || earlier.section > later.section) return false;
  const bool once_after = later.section == Section::kOnceAfter && earlier.section != later.section;
  return !(once_after && g.micro_batches > 1 && is_per_batch(earlier.section));
}

bool same_attrs(const Attrs& a, const Attrs& b) {
  return a.words().size() == b.words().size() && std::equal(a.words().begin(), a.words().end(), b.words().begin()) &&
      a.starts().size() == b.starts().size() && std::equal(a.starts().begin(), a.starts().end(), b.starts().begin());
}

}  // namespace

void merge_common(Graph& g, const CompileOptions&) {
  const std::vector<int32_t> root = alias_roots(g);
  std::vector<int32_t> writes(g.externals.size(), 0);  // so far
  struct Seen {
    NodeId node;
    uint64_t epoch;  // how often what it reads had been written to
  };
  std::unordered_multimap<uint64_t, Seen> seen;
  seen.reserve(g.nodes.size());
  Rewrite edit(g);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    Node& n = g.nodes[i];
    for (ValueId& v : n.in) v = edit.replaced(v);
    if (n.kind == NodeKind::kAssign) ++at_index(writes, n.target);
    if (!mergeable(n)) continue;
    Hasher h, e;
    h.add(n.kind);
    h.add(n.op);
    for (ValueId v : n.in) {
      h.add(v);
      if (v != kNoValue)
        if (int32_t r = at_index(root, v); r >= 0 && at_index(writes, r) > 0) e.add(at_index(writes, r));
    }
    for (int64_t w : n.attrs.words()) h.add(w);
    h.add(n.draw);
    for (ValueId v : n.out) h.add(g.value(v).spec);
    auto same = [&](const Seen& s) {
      const Node& o = at_index(g.nodes, s.node);
      if (s.epoch != e.value() || o.kind != n.kind || o.op != n.op || o.draw != n.draw || o.in.size() != n.in.size() ||
          o.out.size() != n.out.size())
        return false;
      for (size_t k = 0; k < n.in.size(); ++k)
        if (o.in[k] != n.in[k]) return false;
      for (size_t k = 0; k < n.out.size(); ++k) {
        const Value &a = g.value(o.out[k]), &b = g.value(n.out[k]);
        if (a.spec != b.spec || a.dtype != b.dtype || !(a.shape == b.shape)) return false;
      }
      return same_attrs(o.attrs, n.attrs) && serves(g, o, n);
    };
    auto [begin, end] = seen.equal_range(h.value());
    auto found = begin;
    while (found != end && !same(found->second)) ++found;
    if (found == end) {
      seen.emplace(h.value(), Seen{static_cast<NodeId>(i), e.value()});
      continue;
    }
    const Node& first = at_index(g.nodes, found->second.node);
    for (size_t k = 0; k < n.out.size(); ++k) edit.replace(n.out[k], first.out[k]);
    edit.drop(static_cast<NodeId>(i));
  }
  edit.commit();
}

}  // namespace holon::graph
