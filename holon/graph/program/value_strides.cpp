#include "holon/graph/program/value_strides.h"

#include <vector>

#include "holon/base/index.h"
#include "holon/global/slice.h"
#include "holon/registry/op_def.h"

namespace holon::graph {

namespace {

bool chooses_strides(const Node& n) { return n.kind == NodeKind::kOp && n.out.size() == 1 && n.op->writes_strides; }

}  // namespace

// The only reader of v, if that is a view.
const Node* ValueStrides::only_view(ValueId v) const {
  const NodeId n = readers_.only(v);
  if (n < 0) return nullptr;
  const Node& reader = at_index(g_.nodes, n);
  return reader.kind == NodeKind::kOp && reader.op->view ? &reader : nullptr;
}

Dims ValueStrides::of(const Node& n, const Dims& shape) const {
  if (!chooses_strides(n)) return {};
  const Dims own = contiguous_strides(shape);
  Array seen = Array::placeholder(shape, own, g_.value(n.out[0]).dtype);
  ValueId v = n.out[0];
  for (;;) {
    const Node* reader = only_view(v);
    if (!reader) return {};
    if (reader->op->view_kind == ViewKind::kReshape) break;
    if (reader->op->view_kind != ViewKind::kPermute) return {};
    v = reader->out[0];
    const Value& out = g_.value(v);
    Dims to = out.shape;
    if (out.spec)
      to = region_of(out.shape, out.spec->placement, out.spec->nd_sbp, out.spec->placement.index_of(rank_)).shape;
    Array next = seen;
    ViewCall call(*reader->op, reader->attrs, seen, to);
    reader->op->view(call, next);
    seen = std::move(next);
  }
  if (seen.is_contiguous()) return {};
  // Each axis of what is seen is one of the output's, whose stride becomes what it is in row-major order there.
  const Dims wanted = contiguous_strides(seen.shape);
  Dims strides = own;
  std::vector<bool> taken(to_size(shape.size()), false);
  for (int i = 0; i < seen.ndim(); ++i) {
    int axis = 0;
    while (axis < shape.size() &&
           (at_index(taken, axis) || own[axis] != seen.strides[i] || shape[axis] != seen.shape[i]))
      ++axis;
    if (axis == shape.size()) return {};
    at_index(taken, axis) = true;
    strides[axis] = wanted[i];
  }
  return strides;
}

}  // namespace holon::graph
