#include "holon/graph/picture/work.h"

#include <algorithm>
#include <string_view>

#include "holon/boxing/planner.h"
#include "holon/cost/machine.h"

namespace holon::graph {

namespace {

// Of one core, in products that are not tiny. Only its relation to the rates of bytes is of account.
constexpr double kFlopsPerSecond = 60e9;

Dims part_shape(const Value& v) {
  return v.spec ? slice_of(v.shape, v.spec->placement, v.spec->nd_sbp, 0).shape : v.shape;
}

double elements(const Dims& shape) {
  double n = 1;
  for (int64_t s : shape) n *= static_cast<double>(s);
  return n;
}

}  // namespace

int64_t part_bytes(const Value& v) { return part_shape(v).numel() * static_cast<int64_t>(size_bytes(v.dtype)); }

double flops(const Graph& g, const Node& n) {
  if (n.kind != NodeKind::kOp || !n.op || n.in.size() < 2 || n.in[0] == kNoValue || n.in[1] == kNoValue) return 0;
  const std::string_view op = n.op->name();
  const Dims a = part_shape(g.value(n.in[0])), b = part_shape(g.value(n.in[1])), out = part_shape(g.value(n.out[0]));
  const bool any = a.size() > 0 && b.size() > 0;
  if (!any) return 0;
  // Weights' gradients: rows of dy, by what comes out.
  if (op.starts_with("linear_") && op.find("grad") != op.npos)
    return 2 * elements(out) * elements(a) / static_cast<double>(std::max<int64_t>(1, a.back()));
  if (op == "mm" || op == "bmm" || op.starts_with("linear") || op.find("matmul") != op.npos)
    return 2 * elements(out) * static_cast<double>(a.back());
  if (op == "addmm" || op == "baddbmm" || op == "addbmm") return 2 * elements(out) * static_cast<double>(b.back());
  if (op == "convolution") return 2 * elements(out) * elements(b) / static_cast<double>(std::max<int64_t>(1, b[0]));
  if (op == "convolution_input_grad")
    return 2 * elements(a) * elements(b) / static_cast<double>(std::max<int64_t>(1, b[0]));
  if (op == "convolution_weight_grad")
    return 2 * elements(a) * elements(out) / static_cast<double>(std::max<int64_t>(1, out[0]));
  return 0;
}

double seconds(const Graph& g, const Node& n) {
  if (n.kind != NodeKind::kOp && n.kind != NodeKind::kFused && n.kind != NodeKind::kAccumulate) return 0;
  if (n.op && n.op->view) return 0;
  if (const double f = flops(g, n); f > 0) return f / kFlopsPerSecond;
  double bytes = 0;
  for (ValueId v : n.in)
    if (v != kNoValue) bytes += static_cast<double>(part_bytes(g.value(v)));
  for (ValueId v : n.out) bytes += static_cast<double>(part_bytes(g.value(v)));
  return bytes / (2 * rate(machine_costs().copy, bytes, machine_costs()));
}

double box_seconds(const Graph& g, const Node& n) {
  double s = 0;
  if (n.kind == NodeKind::kBox)
    for (size_t i = 0; i < n.in.size(); ++i) {
      const Value &from = g.value(n.in[i]), &to = g.value(n.out[i]);
      if (from.spec && to.spec && from.spec != to.spec) s += boxing::cost(from.spec, to.spec, from.shape, from.dtype);
    }
  return s;
}

Costs estimate_costs(const Graph& g) {
  const size_t n = static_cast<size_t>(std::max(1, g.stages));
  Costs c;
  c.forward.assign(n, 0);
  c.backward.assign(n, 0);
  c.weight.assign(n, 0);
  bool split = false;
  for (auto& node : g.nodes) {
    if (node.form != 0) continue;
    const size_t stage = static_cast<size_t>(std::clamp<int>(node.stage, 0, static_cast<int>(n) - 1));
    double s = seconds(g, node);
    if (node.kind == NodeKind::kBox && node.in.size() == 1) {
      auto *from = g.value(node.in[0]).spec, *to = g.value(node.out[0]).spec;
      if (from && to && from->placement == to->placement) s += box_seconds(g, node);
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
