// What moves values, or sees them otherwise.
#include "holon/graph/ir/kinds.h"
#include "holon/ops/to_global.h"

namespace holon::graph::kinds {

void verify_boxing(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  if (n.in.empty()) check.wrong(n, "it has no inputs to redistribute");
  check.counts(n, n.in.size(), n.in.size());
  for (size_t i = 0; i < n.in.size(); ++i) {
    const Value &a = g.value(n.in[i]), &b = g.value(n.out[i]);
    check.alike(n, b, a, "the redistributed value");
    if (!a.spec || !b.spec) check.wrong(n, "a local value is redistributed");
    if (a.spec != g.value(n.in[0]).spec || b.spec != g.value(n.out[0]).spec || a.dtype != g.value(n.in[0]).dtype)
      check.wrong(n, "the values that it redistributes together differ in layout or dtype");
  }
}

void interpret_boxing(Interpreter& run, const Node& n) {
  for (size_t i = 0; i < n.in.size(); ++i) run.make(n, i, redistributed(run.at(n.in[i]), run.g.value(n.out[i]).spec));
}

void verify_relabel(NodeCheck& check, const Node& n) {
  const Graph& g = check.g;
  check.counts(n, 1, 1);
  const Value &a = g.value(n.in[0]), &b = g.value(n.out[0]);
  if (a.dtype != b.dtype || a.shape.size() != b.shape.size())
    check.wrong(n, "its dtype or number of axes differs from %{}", n.in[0]);
  if (a.is_global() && b.is_global() && !(a.spec->placement == b.spec->placement))
    check.wrong(n, "it is on other ranks than %{}", n.in[0]);
}

void interpret_relabel(Interpreter& run, const Node& n) {
  const Value& v = run.g.value(n.out[0]);
  const Array& part = run.at(n.in[0]).array();
  if (!v.spec) return run.make(n, 0, Tensor::local(part.defined() ? part : Array::empty({0}, v.dtype)));
  const bool member = v.spec->placement.contains(Context::current().rank());
  run.make(n, 0, Tensor::global(member ? part : Array(), v.shape, v.dtype, v.spec));
}

void interpret_agree(Interpreter& run, const Node& n) {
  const Value& v = run.g.value(n.out[0]);
  const Tensor& x = run.at(n.in[0]);
  Tensor part = x.is_local() ? x : Tensor::local(x.array().defined() ? x.array() : Array::empty({0}, v.dtype));
  const bool member = v.spec->placement.contains(Context::current().rank());
  Array agreed;
  if (member) agreed = to_global(part, v.spec->placement, v.spec->nd_sbp, {.check_meta = false}).array();
  run.make(n, 0, Tensor::global(agreed, v.shape, v.dtype, v.spec));
}

}  // namespace holon::graph::kinds
