#include "holon/graph/passes/clones.h"

#include "holon/base/index.h"
#include "holon/graph/passes/rewrite.h"

namespace holon::graph {

namespace {

class Cloner {
 public:
  Cloner(Graph& g, const std::vector<bool>& chosen, const std::vector<bool>& kept)
      : g_(g),
        chosen_(chosen),
        kept_(kept),
        edit_(g),
        made_by_(producers(g)),
        copy_(g.values.size(), kNoValue),
        copy_stage_(g.values.size(), -1) {}

  int64_t run() {
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      if (g_.nodes[i].section != Section::kBackward && g_.nodes[i].section != Section::kWeight) continue;
      for (size_t k = 0; k < g_.nodes[i].in.size(); ++k) {
        ValueId v = g_.nodes[i].in[k];
        if (wanted(v)) g_.nodes[i].in[k] = copy_of(v, static_cast<NodeId>(i));
      }
    }
    edit_.commit();
    return count_;
  }

 private:
  bool wanted(ValueId v) const {
    if (v == kNoValue || to_size(v) >= made_by_.size()) return false;
    NodeId by = at_index(made_by_, v);
    return by >= 0 && at_index(chosen_, by) && !at_index(kept_, v);
  }

  // A stage of the pipeline waits for no other one's copy.
  bool has_copy(ValueId v, int16_t stage) const {
    return at_index(copy_, v) != kNoValue && at_index(copy_stage_, v) == stage;
  }

  // A stack instead of recursion: a chain may be as long as the model.
  ValueId copy_of(ValueId v, NodeId at) {
    const int16_t stage = at_index(g_.nodes, at).stage;
    std::vector<NodeId> open{at_index(made_by_, v)};
    while (!open.empty()) {
      const Node& n = at_index(g_.nodes, open.back());
      if (has_copy(n.out[0], stage)) {
        open.pop_back();
        continue;
      }
      const size_t before = open.size();
      for (ValueId u : n.in)
        if (wanted(u) && !has_copy(u, stage)) open.push_back(at_index(made_by_, u));
      if (open.size() > before) continue;
      Node again = n;
      again.section = Section::kBackward;
      again.pinned = true;
      again.stage = stage;
      for (ValueId& u : again.in)
        if (wanted(u)) u = at_index(copy_, u);
      for (ValueId& out : again.out) {
        ValueId fresh = edit_.value_like(out, g_.value(out).spec);
        at_index(copy_, out) = fresh;
        at_index(copy_stage_, out) = stage;
        out = fresh;
      }
      edit_.insert_before(at, std::move(again));
      ++count_;
      open.pop_back();
    }
    return at_index(copy_, v);
  }

  Graph& g_;
  const std::vector<bool>&chosen_, &kept_;
  Rewrite edit_;
  std::vector<NodeId> made_by_;
  std::vector<ValueId> copy_;  // of each value: the last one made
  std::vector<int16_t> copy_stage_;
  int64_t count_ = 0;
};

}  // namespace

int64_t clone_into_backward(Graph& g, const std::vector<bool>& chosen, const std::vector<bool>& kept) {
  return Cloner(g, chosen, kept).run();
}

std::vector<bool> may_run_again(const Graph& g) {
  std::vector<bool> changes(g.externals.size(), false);
  for (auto& n : g.nodes)
    if (n.kind == NodeKind::kAssign && is_per_batch(n.section)) at_index(changes, n.target) = true;
  const std::vector<int32_t> root = alias_roots(g);
  std::vector<bool> may(g.nodes.size());
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    const Node& n = g.nodes[i];
    bool ok = n.section == Section::kForward && is_pure(n) && n.kind != NodeKind::kAccumulate;
    // Nor what another stage would have to send once more.
    ok = ok &&
        !(n.kind == NodeKind::kBoxing &&
          (n.in.size() != 1 || !(g.value(n.in[0]).spec->placement == g.value(n.out[0]).spec->placement)));
    // A draw without a place is another one each time.
    ok = ok && !(is_op(n) && n.op->random && n.draw < 0 && !n.attrs.has(n.op->counter_attr));
    for (ValueId v : n.in)
      if (v != kNoValue && at_index(root, v) >= 0) ok = ok && !at_index(changes, at_index(root, v));
    may[i] = ok;
  }
  return may;
}

}  // namespace holon::graph
