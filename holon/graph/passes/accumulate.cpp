#include <string>
#include <unordered_map>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/dispatch/layout_free.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"
#include "holon/kernels/sum_tree.h"
#include "holon/op_names/arithmetic.h"

namespace holon::graph {

namespace {

// Sums over micro-batches: sum(f(g)) = f(sum(g)) for a boxing, a rearrangement and an addition, so that the sum is
// taken of what backward makes, and f runs once per step. Casts are left where they are: the sum is taken after them,
// in the wider dtype.
class Accumulate {
 public:
  Accumulate(Graph& g, const CompileOptions& options)
      : g_(g), options_(options), edit_(g), made_by_(producers(g)), uses_(use_counts(g)) {}

  void run() {
    const size_t nodes = g_.nodes.size();
    for (size_t i = 0; i < nodes; ++i) {
      if (g_.nodes[i].kind != NodeKind::kUpdate) continue;
      const Update& u = at_index(g_.updates, g_.nodes[i].target);
      for (size_t k = 0; k < g_.nodes[i].in.size(); ++k) {
        ValueId v = g_.nodes[i].in[k];
        if (v == kNoValue) continue;
        sharded_ = options_.zero_stage >= 2 && sharded(u, k);
        v = sum_of(v);
        g_.nodes[i].in[k] = v;
      }
    }
    edit_.commit();
  }

 private:
  // Under ZeRO 2 no rank keeps more of a gradient than its shard.
  bool sharded(const Update& u, size_t slot) const {
    if (u.shards[slot]) return true;
    const External& e = at_index(g_.externals, u.externals[slot]);
    return options_.zero_stage >= 3 && e.tensor.spec() && e.tensor.spec()->nd_sbp.has_split();
  }

  bool is_rearrangement(const Node& n) const {
    return is_op(n) && n.in.size() == 1 && n.out.size() == 1 && n.op->view && n.op->view_kind != ViewKind::kOther;
  }
  bool is_addition(const Node& n) const { return is_op(n) && n.in.size() == 2 && n.out.size() == 1 && n.op == op::add; }
  // Its addends are not stretched by broadcasting, so that their sums take no more memory than its own.
  bool is_plain_addition(const Node& n) const {
    if (!is_addition(n)) return false;
    for (ValueId v : n.in)
      if (!(g_.value(v).shape == g_.value(n.out[0]).shape) || g_.value(v).dtype != g_.value(n.out[0]).dtype)
        return false;
    return true;
  }

  const Node* producer(ValueId v) const {
    NodeId by = at_index(made_by_, v);
    return by < 0 ? nullptr : &at_index(g_.nodes, by);
  }
  bool alone(ValueId v) const { return at_index(uses_, v) == 1; }

  // Whether the sum is better taken before the boxing.
  bool boxing_waits(const Node& n) const {
    const Value &from = g_.value(n.in[0]), &to = g_.value(n.out[0]);
    const bool grows = local_bytes(from) > local_bytes(to);
    if (grows && sharded_) return false;
    return !grows || boxing::plan(from.spec, to.spec, from.shape, from.dtype).max_read_bytes() > 0;
  }

  // Whether ranks would communicate once per micro-batch on the way to v, where once per step is enough.
  bool communicates_above(ValueId v, int depth) const {
    const Node* n = producer(v);
    if (!n || depth == 0 || !alone(v) || !is_per_batch(n->section)) return false;
    if (is_single_boxing(*n)) return boxing_waits(*n) || communicates_above(n->in[0], depth - 1);
    if (is_rearrangement(*n)) return communicates_above(n->in[0], depth - 1);
    if (is_plain_addition(*n))
      return communicates_above(n->in[0], depth - 1) || communicates_above(n->in[1], depth - 1);
    return false;
  }

  // Of a constant gradient: the first stage that works where it is.
  int16_t stage_where(ValueId v) const {
    if (auto* spec = g_.value(v).spec)
      for (auto& n : g_.nodes)
        if (!n.out.empty() && n.section == Section::kForward)
          if (auto* other = g_.value(n.out[0]).spec; other && other->placement == spec->placement) return n.stage;
    return 0;
  }

  static constexpr int kFar = 16;

  // The value whose producer runs once per step and gives the sum of v.
  ValueId sum_of(ValueId v) {
    auto known = sums_.find(v);
    if (known != sums_.end()) return known->second;
    const NodeId by = at_index(made_by_, v);
    Node* n = by < 0 ? nullptr : &at_index(g_.nodes, by);
    if (n && n->section == Section::kOnceAfter) return v;
    if (layout_free() && n && is_per_batch(n->section)) return sum_in_tree(v, by);
    const bool passes = n && !options_.sum_last && is_per_batch(n->section) && alone(v) &&
        ((is_single_boxing(*n) && boxing_waits(*n)) || (is_rearrangement(*n) && communicates_above(n->in[0], kFar)) ||
         (is_plain_addition(*n) && (communicates_above(n->in[0], kFar) || communicates_above(n->in[1], kFar))));
    if (passes) {
      // Deeper than a chain of boxings and views goes, the recursion ends: an addition of a few gradients.
      for (size_t k = 0; k < n->in.size(); ++k) {
        ValueId sum = sum_of(n->in[k]);
        at_index(g_.nodes, by).in[k] = sum;
      }
      at_index(g_.nodes, by).section = Section::kOnceAfter;
      return sums_[v] = v;
    }
    return accumulated(v, by);
  }

  // The sum of v, which node `by` makes for each micro-batch, where its order is to be that of the whole batch: what
  // is added up are the sums over rows themselves, before anything else is done with them.
  ValueId sum_in_tree(ValueId v, NodeId by) {
    Node* n = &at_index(g_.nodes, by);
    if (alone(v) && (is_single_boxing(*n) || is_rearrangement(*n) || is_plain_addition(*n))) {
      for (size_t k = 0; k < n->in.size(); ++k) {
        ValueId sum = sum_of(n->in[k]);
        at_index(g_.nodes, by).in[k] = sum;
      }
      at_index(g_.nodes, by).section = Section::kOnceAfter;
      return sums_[v] = v;
    }
    check_sum(*n, v);
    return accumulated(v, by);
  }

  // Errors (ValueError): the sum over micro-batches of what n makes is not in the order of the whole batch.
  void check_sum(const Node& n, ValueId v) const {
    auto refuse = [&](const std::string& why) {
      fail_value("deterministic(layout_free=True): a gradient of shape {} would not have the bits of one that is taken "
                 "of the whole batch at once: {}{}. Use one micro-batch, or fewer ranks for its rows.",
                 g_.value(v).shape, why,
                 at_index(g_.scopes, n.scope).empty() ? "" : fmt::format(" (in {})", at_index(g_.scopes, n.scope)));
    };
    if (!is_op(n) || n.op->sums != Sums::kTree)
      refuse(fmt::format("it is made by {} in each micro-batch, which rounds", is_op(n) ? n.op->name() : "a node"));
    std::vector<Meta> in, out;
    for (ValueId i : n.in) in.push_back(i == kNoValue ? Meta{} : Meta{g_.value(i).shape, g_.value(i).dtype});
    for (ValueId o : n.out) out.push_back({g_.value(o).shape, g_.value(o).dtype});
    const int64_t terms = terms_of_sums(*n.op, n.attrs, in, out);
    if (kernels::leaf_length(terms) != kernels::leaf_length(terms * g_.micro_batches))
      refuse(fmt::format("{} adds up {} rows for each micro-batch, which are too few", n.op->name(), terms));
    // Rows that ranks hold are added up on each of them, over its micro-batches, and then over the ranks.
    const GlobalSpec* spec = g_.value(v).spec;
    if (!spec) return;
    for (ValueId input : g_.inputs_of(0)) {
      const GlobalSpec* of = g_.value(input).spec;
      if (!of || of->placement.hierarchy() != spec->placement.hierarchy()) continue;
      for (int a = 0; a < of->nd_sbp.size(); ++a)
        if (of->nd_sbp[a].is_split(0) && of->placement.hierarchy()[a] > 1 && !spec->nd_sbp[a].is_partial())
          refuse(fmt::format("{} brings the rows of the ranks together in each micro-batch", n.op->name()));
    }
  }

  ValueId accumulated(ValueId v, NodeId by) {
    const Node* n = by < 0 ? nullptr : &at_index(g_.nodes, by);
    ValueId sum = edit_.value_like(v, g_.value(v).spec);
    made_by_.resize(g_.values.size(), -1);
    uses_.resize(g_.values.size(), 1);
    Node add;
    if (n) add = node_like(*n, NodeKind::kAccumulate);
    add.kind = NodeKind::kAccumulate;
    if (!is_per_batch(add.section) || add.section == Section::kForward) add.section = Section::kBackward;
    if (!n) add.stage = stage_where(v);
    add.in.push_back(v);
    add.out.push_back(sum);
    edit_.insert_after(n ? by : -1, std::move(add));
    return sums_[v] = sum;
  }

  Graph& g_;
  const CompileOptions& options_;
  Rewrite edit_;
  std::vector<NodeId> made_by_;
  std::vector<int32_t> uses_;
  std::unordered_map<ValueId, ValueId> sums_;
  bool sharded_ = false;
};

}  // namespace

void accumulate_gradients(Graph& g, const CompileOptions& options) {
  if (g.micro_batches <= 1) return;
  if (layout_free() && ((g.micro_batches & (g.micro_batches - 1)) != 0 || options.uneven))
    fail_value("deterministic(layout_free=True): gradients of {} micro-batches{} are not those of the whole batch, bit "
               "by bit. Choose a power of two, of even rows.",
               g.micro_batches, options.uneven ? " of uneven rows" : "");
  Accumulate(g, options).run();
}

}  // namespace holon::graph
