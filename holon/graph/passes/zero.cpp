#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/passes/clones.h"
#include "holon/graph/passes/pass.h"
#include "holon/graph/passes/rewrite.h"
#include "holon/op_names/cast.h"

namespace holon::graph {

namespace {

// The spec with a broadcast axis of the hierarchy split along the first axis of the tensor that is long enough;
// nullptr: none is. Each rank's shard is in the part that it has: axes of the hierarchy cut in order, so that none
// after this one may cut there.
const GlobalSpec* split_along(const Value& v, const GlobalSpec* spec, int rank_axis) {
  const Dims& hierarchy = spec->placement.hierarchy();
  for (int d = 0; d < v.shape.size(); ++d) {
    int64_t ranks = hierarchy[rank_axis];
    bool inside = true;
    for (int a = 0; a < spec->nd_sbp.size(); ++a) {
      if (!spec->nd_sbp[a].is_split(d) || hierarchy[a] == 1) continue;
      ranks *= hierarchy[a];
      inside = inside && a < rank_axis;
    }
    if (inside && v.shape[d] >= ranks) return intern_spec(spec->placement, spec->nd_sbp.with(rank_axis, sbp::split(d)));
  }
  return nullptr;
}

// from: that of the gradient's addends, or nullptr where any broadcast axis will do.
const GlobalSpec* shard_of(const Value& param, const GlobalSpec* from, const CompileOptions& options) {
  const GlobalSpec* spec = param.spec;
  if (!spec || spec->nd_sbp.has_partial() || param.shape.numel() < options.zero_min_elements) return nullptr;
  for (int a = 0; a < spec->nd_sbp.size(); ++a) {
    if (options.zero_axis >= 0 && a != options.zero_axis) continue;
    if (!spec->nd_sbp[a].is_broadcast() || spec->placement.hierarchy()[a] < 2) continue;
    if (from && !from->nd_sbp[a].is_partial()) continue;
    if (const GlobalSpec* shard = split_along(param, spec, a)) return shard;
  }
  return nullptr;
}

class Zero {
 public:
  Zero(Graph& g, const CompileOptions& options) : g_(g), options_(options) {}

  void run() {
    if (options_.zero_stage >= 3) gather_parameters();
    Rewrite edit(g_);
    const std::vector<NodeId> made_by = producers(g_);
    const std::vector<int32_t> uses = use_counts(g_);
    const size_t nodes = g_.nodes.size();
    for (size_t i = 0; i < nodes; ++i) {
      if (g_.nodes[i].kind != NodeKind::kUpdate) continue;
      Update& u = at_index(g_.updates, g_.nodes[i].target);
      if (u.idle) continue;
      SmallVec<ValueId, 2> out;
      size_t next_out = 0;
      for (size_t k = 0; k < u.externals.size(); ++k) {
        if (u.shards[k]) {
          out.push_back(g_.nodes[i].out[next_out++]);
          continue;
        }
        const External& e = at_index(g_.externals, u.externals[k]);
        const ValueId v = g_.nodes[i].in[k];
        if (v == kNoValue) continue;
        NodeId by = at_index(made_by, v);
        Node* boxing = by >= 0 && is_single_boxing(at_index(g_.nodes, by)) ? &at_index(g_.nodes, by) : nullptr;
        const GlobalSpec* shard;
        const bool stored = converted(e);
        if (stored) {
          shard = e.tensor.spec();
        } else {
          if (!boxing || g_.value(v).spec != g_.value(e.value).spec) continue;
          const GlobalSpec* from = g_.value(boxing->in[0]).spec;
          if (!(from->placement == g_.value(v).spec->placement)) continue;
          shard = shard_of(g_.value(e.value), from, options_);
          if (!shard) continue;
        }
        if (boxing && at_index(uses, v) == 1) {
          g_.value(v).spec = shard;  // the update is the only one that reads it
          boxing->pinned = false;
        } else if (g_.value(v).spec != shard) {
          ValueId part = edit.value_like(v, shard);
          Node like = by >= 0 ? at_index(g_.nodes, by) : g_.nodes[i];
          edit.insert_after(by, make_boxing(like, v, part));
          g_.nodes[i].in[k] = part;
        }
        if (stored) continue;
        u.shards[k] = shard;
        const ValueId fresh = edit.value_like(e.value, shard), whole = edit.value_like(e.value, g_.value(e.value).spec);
        out.push_back(fresh);
        Node gather = make_boxing(g_.nodes[i], fresh, whole), assign = node_like(g_.nodes[i], NodeKind::kAssign);
        if (by >= 0) gather.stage = assign.stage = at_index(g_.nodes, by).stage;
        assign.in.push_back(whole);
        assign.target = u.externals[k];
        at_index(g_.externals, u.externals[k]).assigned = true;
        edit.insert_after(static_cast<NodeId>(i), std::move(gather));
        edit.insert_after(static_cast<NodeId>(i), std::move(assign));
      }
      g_.nodes[i].out = std::move(out);
    }
    edit.commit();
  }

 private:
  // The caller has put the parameter into its shard's layout.
  bool converted(const External& e) const {
    return options_.zero_stage >= 3 && stored_.size() > 0 && at_index(stored_, g_.value(e.value).index);
  }

  bool is_narrowing(const Node& n) const {
    return is_op(n) && n.op == op::cast && size_bytes(g_.value(n.out[0]).dtype) < size_bytes(g_.value(n.in[0]).dtype);
  }

  // A parameter that is in shards is redistributed to its layout where forward begins to read it, and again where
  // backward does.
  void gather_parameters() {
    stored_.assign(g_.externals.size(), false);
    std::vector<ValueId> whole(g_.values.size(), kNoValue);  // of externals that are in shards
    std::vector<const GlobalSpec*> asked(g_.values.size(), nullptr);
    for (size_t x = 0; x < g_.externals.size(); ++x) {
      External& e = g_.externals[x];
      Value& v = g_.value(e.value);
      if (!v.spec || !e.tensor.defined() || e.tensor.spec() == v.spec) continue;
      if (!e.tensor.spec() || !(e.tensor.spec()->placement == v.spec->placement))
        fail_value("ZeRO 3: parameter \"{}\" is on other ranks than when the graph was captured. Only its sbp may "
                   "change, to the one that zero3_specs() returns.",
                   e.name);
      at_index(asked, e.value) = v.spec;
      v.spec = e.tensor.spec();
      stored_[x] = true;
    }
    Rewrite edit(g_);
    const size_t nodes = g_.nodes.size();
    for (size_t i = 0; i < nodes; ++i) {
      Node& n = g_.nodes[i];
      if (n.kind == NodeKind::kAssign && at_index(stored_, n.target)) {
        const GlobalSpec* shard = g_.value(at_index(g_.externals, n.target).value).spec;
        if (g_.value(n.in[0]).spec != shard) {
          ValueId part = edit.value_like(n.in[0], shard);
          edit.insert_before(static_cast<NodeId>(i), make_boxing(n, n.in[0], part));
          n.in[0] = part;
        }
        continue;
      }
      for (size_t k = 0; k < n.in.size(); ++k) {
        const ValueId v = n.in[k];
        if (v == kNoValue || to_size(v) >= asked.size() || !at_index(asked, v)) continue;
        if (n.section == Section::kForward && is_narrowing(n)) {
          // It is cast first, and gathered in fewer bytes.
          Node& cast = g_.nodes[i];
          const ValueId narrow = edit.value_like(cast.out[0], g_.value(v).spec);
          Node gather = make_boxing(cast, narrow, cast.out[0]);
          gather.pinned = true;
          cast.out[0] = narrow;
          edit.insert_after(static_cast<NodeId>(i), std::move(gather));
          continue;
        }
        ValueId& full = at_index(whole, v);
        if (full == kNoValue) {
          full = edit.value_like(v, at_index(asked, v));
          Node gather = make_boxing(n, v, full);
          gather.pinned = true;
          if (gather.section == Section::kOnceBefore) gather.section = Section::kForward;
          edit.insert_before(static_cast<NodeId>(i), std::move(gather));
        }
        g_.nodes[i].in[k] = full;
        if (g_.nodes[i].section == Section::kOnceBefore) g_.nodes[i].section = Section::kForward;
      }
    }
    edit.commit();
    // What is made of a gathered parameter alone, at no cost to speak of, is made again too, so that it does not keep
    // the parameter.
    std::vector<bool> chosen(g_.nodes.size(), false), of_parameter(g_.values.size(), false);
    for (size_t x = 0; x < g_.externals.size(); ++x)
      if (stored_[x]) at_index(of_parameter, g_.externals[x].value) = true;
    for (size_t i = 0; i < g_.nodes.size(); ++i) {
      const Node& n = g_.nodes[i];
      if (n.section != Section::kForward || n.in.size() != 1 || n.in[0] == kNoValue || !at_index(of_parameter, n.in[0]))
        continue;
      if (!is_view(n) && !(is_op(n) && n.op == op::cast)) continue;
      if (n.kind == NodeKind::kBoxing && !(g_.value(n.in[0]).spec->placement == g_.value(n.out[0]).spec->placement))
        continue;
      chosen[i] = true;
      for (ValueId v : n.out) at_index(of_parameter, v) = true;
    }
    clone_into_backward(g_, chosen, std::vector<bool>(g_.values.size(), false));
  }

  Graph& g_;
  const CompileOptions& options_;
  std::vector<bool> stored_;
};

}  // namespace

std::vector<const GlobalSpec*> zero3_specs(const Graph& g, const CompileOptions& options) {
  std::vector<const GlobalSpec*> specs(g.externals.size(), nullptr);
  for (auto& u : g.updates)
    for (int32_t e : u.idle ? std::span<const int32_t>() : std::span<const int32_t>(u.externals))
      at_index(specs, e) = shard_of(g.value(at_index(g.externals, e).value), nullptr, options);
  return specs;
}

void shard_updates(Graph& g, const CompileOptions& options) {
  if (options.zero_stage > 0) Zero(g, options).run();
}

}  // namespace holon::graph
