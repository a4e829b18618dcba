#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/graph/ir/signatures.h"
#include "holon/graph/passes/parameters.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"
#include "holon/op_names/arithmetic.h"
#include "holon/op_names/cast.h"

namespace holon::graph {

namespace {

// Two ways of about the same cost are not worth a change.
constexpr double kGain = 0.999;

class MergeBoxing {
 public:
  explicit MergeBoxing(Graph& g) : g_(g), edit_(g), made_by_(producers(g)), uses_(use_counts(g)) {}

  void run() {
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      Node& n = g_.nodes[i];
      for (ValueId& v : n.in) v = edit_.replaced(v);
      if (!is_single_boxing(n)) {
        if (is_op(n)) {
          narrow_before(static_cast<NodeId>(i));
          add_before(static_cast<NodeId>(i));
        }
        continue;
      }
      widen_after(static_cast<NodeId>(i));
      shorten(n);
      if (spec(n.in[0]) == spec(n.out[0])) {
        replace(n.out[0], n.in[0]);
        remove(static_cast<NodeId>(i));
      }
    }
    edit_.commit();
  }

 private:
  const GlobalSpec* spec(ValueId v) const { return g_.value(v).spec; }
  double cost(const GlobalSpec* from, const GlobalSpec* to, const Value& v) const {
    return from == to ? 0 : boxing::cost(from, to, v.shape, v.dtype);
  }
  const Node* producer(ValueId v) const {
    NodeId by = at_index(made_by_, v);
    return by < 0 || edit_.is_dropped(by) ? nullptr : &at_index(g_.nodes, by);
  }
  int32_t& uses(ValueId v) { return at_index(uses_, v); }

  void replace(ValueId old, ValueId by) {
    edit_.replace(old, by);
    uses(by) += uses(old);
    uses(old) = 0;
  }
  void remove(NodeId at) {
    for (ValueId v : at_index(g_.nodes, at).in) --uses(v);
    edit_.drop(at);
  }

  // A -> B -> C becomes A -> C, where B is not needed, or where C is nearer to A than to B.
  void shorten(Node& n) {
    for (;;) {
      const ValueId middle = n.in[0];
      const Node* p = producer(middle);
      if (!p || !is_single_boxing(*p) || p->section != n.section || p->stage != n.stage || p->pinned != n.pinned)
        return;
      const ValueId start = p->in[0];
      const Value& v = g_.value(middle);
      const bool needed = uses(middle) > 1;
      const double direct = cost(spec(start), spec(n.out[0]), v), last = cost(spec(middle), spec(n.out[0]), v);
      if (needed ? direct >= kGain * last : direct > cost(spec(start), spec(middle), v) + last) return;
      n.in[0] = start;
      ++uses(start);
      if (--uses(middle) == 0) remove(at_index(made_by_, middle));
    }
  }

  static bool moves_whole_elements(const GlobalSpec* from, const GlobalSpec* to) {
    return !from->nd_sbp.has_partial() && !to->nd_sbp.has_partial();
  }
  bool is_cast(const Node& n) const { return is_op(n) && n.op == op::cast && n.in.size() == 1; }
  int64_t width(ValueId v) const { return static_cast<int64_t>(size_bytes(g_.value(v).dtype)); }

  // cast(boxing(x)) to fewer bytes becomes boxing(cast(x)).
  void narrow_before(NodeId at) {
    Node& n = at_index(g_.nodes, at);
    if (!is_cast(n) || n.pinned || !spec(n.out[0]) || width(n.out[0]) >= width(n.in[0])) return;
    const ValueId moved = n.in[0];
    const Node* p = producer(moved);
    if (!p || !is_single_boxing(*p) || p->pinned || uses(moved) != 1 || p->section != n.section || p->stage != n.stage)
      return;
    if (!moves_whole_elements(spec(p->in[0]), spec(moved))) return;
    const Value& v = g_.value(moved);
    if (boxing::plan(spec(p->in[0]), spec(moved), v.shape, v.dtype).max_read_bytes() == 0) return;
    const ValueId narrow = edit_.value_like(n.out[0], spec(p->in[0])), start = p->in[0];
    track(narrow);
    const Node boxing = make_boxing(*p, narrow, n.out[0]);
    forget(n.out[0]);
    remove(at_index(made_by_, moved));
    n.in[0] = start;
    n.out[0] = narrow;
    ++uses(start);
    uses(moved) = 0;
    uses(narrow) = 1;
    edit_.insert_after(at, boxing);
  }

  // boxing(a) + boxing(b), both of one layout and to one, becomes boxing(a + b): gradients of a parameter that is used
  // twice.
  void add_before(NodeId at) {
    Node& n = at_index(g_.nodes, at);
    if (n.op != op::add || n.in.size() != 2 || n.pinned || n.in[0] == n.in[1] || !spec(n.out[0])) return;
    const Node *a = producer(n.in[0]), *b = producer(n.in[1]);
    for (const Node* p : {a, b})
      if (!p || !is_single_boxing(*p) || p->pinned || p->section != n.section || p->stage != n.stage) return;
    const GlobalSpec* from = spec(a->in[0]);
    if (spec(b->in[0]) != from || spec(a->out[0]) != spec(n.out[0]) || spec(b->out[0]) != spec(n.out[0])) return;
    if (!(from->placement == spec(n.out[0])->placement)) return;
    const Value& out = g_.value(n.out[0]);
    for (ValueId v : n.in)
      if (uses(v) != 1 || !(g_.value(v).shape == out.shape) || g_.value(v).dtype != out.dtype) return;
    if (boxing::plan(from, out.spec, out.shape, out.dtype).max_read_bytes() == 0) return;
    const Meta meta{out.shape, out.dtype}, both[] = {meta, meta};
    const GlobalSpec *in[] = {from, from}, *sum_spec[] = {from};
    if (!has_signature(*n.op, n.attrs, both, {&meta, 1}, in, sum_spec)) return;
    const ValueId sum = edit_.value_like(n.out[0], from);
    track(sum);
    const Node boxing = make_boxing(n, sum, n.out[0]);
    forget(n.out[0]);
    for (ValueId& v : n.in) {
      const ValueId start = at_index(g_.nodes, at_index(made_by_, v)).in[0];
      ++uses(start);
      remove(at_index(made_by_, v));
      uses(v) = 0;
      v = start;
    }
    n.out[0] = sum;
    uses(sum) = 1;
    edit_.insert_after(at, boxing);
  }

  // boxing(cast(x)) from fewer bytes becomes cast(boxing(x)).
  void widen_after(NodeId at) {
    Node& n = at_index(g_.nodes, at);
    const ValueId wide = n.in[0];
    const Node* p = producer(wide);
    if (n.pinned || !p || !is_cast(*p) || p->pinned || uses(wide) != 1 || p->section != n.section ||
        p->stage != n.stage)
      return;
    if (width(p->in[0]) >= width(wide) || !spec(wide) || !moves_whole_elements(spec(wide), spec(n.out[0]))) return;
    if (!(spec(wide)->placement == spec(n.out[0])->placement)) return;
    const Value& v = g_.value(wide);
    if (boxing::plan(spec(wide), spec(n.out[0]), v.shape, v.dtype).max_read_bytes() == 0) return;
    const ValueId start = p->in[0], narrow = edit_.value_like(start, spec(n.out[0]));
    track(narrow);
    Node cast = *p;
    cast.in[0] = narrow;
    cast.out[0] = n.out[0];
    forget(n.out[0]);
    remove(at_index(made_by_, wide));
    n.in[0] = start;
    n.out[0] = narrow;
    ++uses(start);
    uses(wide) = 0;
    uses(narrow) = 1;
    edit_.insert_after(at, std::move(cast));
  }

  // What makes the value now is not a node of the graph yet, and is not looked at again.
  void forget(ValueId v) { at_index(made_by_, v) = -1; }
  // A value that the pass has made.
  void track(ValueId v) {
    made_by_.resize(to_size(v) + 1, -1);
    uses_.resize(to_size(v) + 1, 0);
  }

  Graph& g_;
  Rewrite edit_;
  std::vector<NodeId> made_by_;
  std::vector<int32_t> uses_;
};

}  // namespace

void merge_boxing(Graph& g, const CompileOptions&) { MergeBoxing(g).run(); }

void hoist_once(Graph& g, const CompileOptions& options) {
  if (g.micro_batches <= 1) return;
  // What each micro-batch changes is not the same in all.
  std::vector<bool> changes(g.externals.size(), false);
  for (auto& n : g.nodes)
    if (n.kind == NodeKind::kAssign && is_per_batch(n.section)) at_index(changes, n.target) = true;
  std::vector<bool> once(g.values.size(), false);
  for (auto& e : g.externals) at_index(once, e.value) = !at_index(changes, g.value(e.value).index);
  const std::vector<bool> of_parameter = parameter_values(g);
  for (auto& n : g.nodes) {
    // What ZeRO 3 gathers is let go again, as are other copies of parameters, and what backward computes again stays
    // there.
    const bool stays = (n.pinned && (n.section != Section::kForward || options.zero_stage >= 3)) ||
        is_parameter_copy(g, n, of_parameter);
    bool moves = is_pure(n) && n.kind != NodeKind::kAccumulate && n.kind != NodeKind::kFused && !stays && n.draw < 0 &&
        !(n.op && n.op->random);
    for (ValueId v : n.in) moves = moves && (v == kNoValue || at_index(once, v));
    if (n.section == Section::kOnceBefore) moves = true;
    if (!moves || n.section == Section::kOnceAfter) continue;
    n.section = Section::kOnceBefore;
    for (ValueId v : n.out) at_index(once, v) = true;
  }
}

}  // namespace holon::graph
