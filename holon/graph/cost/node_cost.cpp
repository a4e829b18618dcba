#include "holon/graph/cost/node_cost.h"

#include <algorithm>
#include <string_view>

#include "holon/base/index.h"
#include "holon/boxing/planner.h"
#include "holon/cost/machine.h"
#include "holon/dispatch/signature.h"
#include "holon/graph/ir/node_kind.h"
#include "holon/graph/ir/signatures.h"

namespace holon::graph {

namespace {

// Of one core, in products that are not tiny. Only its relation to the rates of bytes is of account.
constexpr double kFlopsPerSecond = 60e9;

Dims part_shape(const Value& v, const GlobalSpec* spec) {
  return spec ? region_of(v.shape, spec->placement, spec->nd_sbp, 0).shape : v.shape;
}
Dims part_shape(const Value& v) { return part_shape(v, v.spec); }

// Of a node whose kernel may bring inputs together itself: how it reads them.
SmallVec<const GlobalSpec*, 4> read_as(const Graph& g, const Node& n) {
  if (!n.op->communicates || !g.value(n.out[0]).spec) return {};
  const NodeCall call(g, n);
  return holon::read_as(signatures_of(*n.op, n.attrs, call.in, call.out), call.in_specs, call.out_specs);
}

}  // namespace

int64_t part_bytes(const Value& v) { return part_shape(v).numel() * static_cast<int64_t>(size_bytes(v.dtype)); }

double flops(const Graph& g, const Node& n) {
  if (n.kind != NodeKind::kOp || !n.op || !n.op->flops) return 0;
  auto metas = [&](const auto& values) {
    SmallVec<Meta, 8> m;
    for (ValueId v : values) m.push_back(v == kNoValue ? Meta{} : Meta{part_shape(g.value(v)), g.value(v).dtype});
    return m;
  };
  auto in = metas(n.in);
  const auto out = metas(n.out);
  const auto as = read_as(g, n);
  for (size_t i = 0; i < as.size(); ++i)
    if (as[i]) in[i].shape = part_shape(g.value(n.in[i]), as[i]);
  return n.op->flops(CallShapes(*n.op, n.attrs, in, out));
}

double seconds(const Graph& g, const Node& n) {
  if (!traits(n).computes) return 0;
  if (n.op && n.op->view) return 0;
  if (const double f = flops(g, n); f > 0) return f / kFlopsPerSecond;
  double bytes = 0;
  for (ValueId v : n.in)
    if (v != kNoValue) bytes += static_cast<double>(part_bytes(g.value(v)));
  for (ValueId v : n.out) bytes += static_cast<double>(part_bytes(g.value(v)));
  return bytes / (2 * rate(machine_costs().copy, bytes, machine_costs()));
}

double boxing_seconds(const Graph& g, const Node& n) {
  double s = 0;
  if (n.kind == NodeKind::kBoxing)
    for (size_t i = 0; i < n.in.size(); ++i) {
      const Value &from = g.value(n.in[i]), &to = g.value(n.out[i]);
      if (from.spec && to.spec && from.spec != to.spec) s += boxing::cost(from.spec, to.spec, from.shape, from.dtype);
    }
  return s;
}

Costs estimate_costs(const Graph& g) {
  const size_t n = to_size(std::max(1, g.stages));
  Costs c;
  c.forward.assign(n, 0);
  c.backward.assign(n, 0);
  c.weight.assign(n, 0);
  bool split = false;
  for (auto& node : g.nodes) {
    if (node.variant != 0) continue;
    const size_t stage = to_size(std::clamp<int>(node.stage, 0, static_cast<int>(n) - 1));
    double s = seconds(g, node);
    if (node.kind == NodeKind::kBoxing && node.in.size() == 1) {
      auto *from = g.value(node.in[0]).spec, *to = g.value(node.out[0]).spec;
      if (from && to && from->placement == to->placement) s += boxing_seconds(g, node);
    }
    if (node.section == Section::kForward) c.forward[stage] += s;
    if (node.section == Section::kBackward) c.backward[stage] += s;
    if (node.section == Section::kWeight) c.weight[stage] += s, split = true;
  }
  if (!split)
    for (size_t s = 0; s < n; ++s) {
      c.weight[s] = c.backward[s] / 2;
      c.backward[s] -= c.weight[s];
    }
  return c;
}

}  // namespace holon::graph
