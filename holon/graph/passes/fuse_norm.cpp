
#include "holon/base/index.h"
#include "holon/graph/ir/readers.h"
#include "holon/graph/ir/signatures.h"
#include "holon/graph/passes/fuse.h"
#include "holon/graph/program/fused.h"
#include "holon/op_names/add_norm.h"
#include "holon/op_names/arithmetic.h"
#include "holon/op_names/cast.h"
#include "holon/op_names/norm.h"

namespace holon::graph {
namespace {

class Norms {
 public:
  explicit Norms(Graph& g) : g_(g), readers_(g), gone_(g.nodes.size(), false) {}

  void run() {
    for (NodeId n = 0; n < static_cast<NodeId>(g_.nodes.size()); ++n) {
      if (is(n, op::layer_norm_stats)) forward(n, op::add_layer_norm);
      if (is(n, op::rms_norm_stats)) forward(n, op::add_rms_norm);
      if (is(n, op::layer_norm_backward)) backward(n, op::layer_norm_backward_add);
      if (is(n, op::rms_norm_backward)) backward(n, op::rms_norm_backward_add);
    }
    remove_nodes(g_, gone_);
  }

 private:
  Node& node(NodeId n) { return at_index(g_.nodes, n); }
  const Value& value(ValueId v) const { return g_.value(v); }
  bool is(NodeId n, const OpDef& op) {
    return n >= 0 && !at_index(gone_, n) && node(n).kind == NodeKind::kOp && node(n).op && node(n).op == &op;
  }
  // What is computed again stays with what is.
  bool together(NodeId a, NodeId b) {
    return node(a).section == node(b).section && node(a).stage == node(b).stage && node(a).pinned == node(b).pinned;
  }
  bool alike(ValueId a, ValueId b) const {
    return value(a).shape == value(b).shape && value(a).spec == value(b).spec && value(a).device == value(b).device;
  }
  // A conversion of a floating value, of which the second is the wider type.
  bool is_cast(NodeId n, bool widens) {
    if (!is(n, op::cast)) return false;
    const DType from = value(node(n).in[0]).dtype, to = value(node(n).out[0]).dtype;
    return is_floating(from) && is_floating(to) &&
        (widens ? size_bytes(from) < size_bytes(to) : size_bytes(from) > size_bytes(to));
  }

  // The cast that makes v for node `reader` alone and might be done where node `at` is; -1: none.
  NodeId cast_before(ValueId v, NodeId reader, NodeId at) {
    const NodeId c = readers_.producer(v);
    return is_cast(c, true) && readers_.only(v) == reader && together(c, reader) &&
            readers_.may_read_later(g_, c, at) && alike(v, node(c).in[0])
        ? c
        : -1;
  }

  // An element-wise op whose result only `sum` reads: a chain of them saves writing and reading that, a norm only
  // reading the sum.
  bool chain_pays(ValueId v, NodeId sum) {
    const NodeId p = readers_.producer(v);
    return p >= 0 && node(p).kind == NodeKind::kOp && node(p).op && fusible(*node(p).op) && !is(p, op::cast) &&
        readers_.only(v) == sum && together(p, sum) && alike(v, node(sum).out[0]);
  }

  // x + other, of which the norm is computed.
  void forward(NodeId norm, const OpDef& op) {
    const ValueId sum = node(norm).in[0];
    const NodeId add = readers_.producer(sum);
    if (!is(add, op::add) || !together(add, norm) || !readers_.may_read_later(g_, add, norm)) return;
    for (NodeId r : readers_.of(sum))
      if (r < norm) return;
    SmallVec<ValueId, 4> in = node(add).in;
    for (ValueId v : in)
      if (!alike(v, sum) || chain_pays(v, add)) return;
    const DType dtype = value(sum).dtype;
    if (!is_floating(dtype)) return;
    Node n = node(norm);
    NodeId casts[2] = {-1, -1}, narrow = -1;
    for (size_t i = 0; i < 2; ++i) {
      const NodeId c = in[0] == in[1] ? -1 : cast_before(in[i], add, norm);
      // The dtype of the sum is that of the wider operand.
      if (c < 0 || promote(value(node(c).in[0]).dtype, value(in[1 - i]).dtype) != dtype) continue;
      casts[i] = c;
      in[i] = node(c).in[0];
    }
    for (size_t i = 1; i < n.in.size(); ++i) in.push_back(n.in[i]);
    ValueId y = n.out[0];
    // Rounded once, where the norm is given in the type that it is computed in.
    if (const NodeId c = readers_.only(y);
        is_cast(c, false) && together(c, norm) && alike(y, node(c).out[0]) && (dtype == float32 || dtype == float64)) {
      narrow = c;
      y = node(c).out[0];
    }
    const AttrReader old(*n.op, n.attrs);
    n.attrs = make_attrs(
        op.schema,
        std::vector<NamedAttr>{{"axes", old.i("axes"_attr)}, {"eps", old.f("eps"_attr)}, {"dtype", value(y).dtype}});
    n.op = &op;
    n.in = std::move(in);
    SmallVec<ValueId, 2> out{sum, y};
    for (size_t o = 1; o < n.out.size(); ++o) out.push_back(n.out[o]);
    n.out = std::move(out);
    if (!has_signature(g_, n)) return;
    node(norm) = std::move(n);
    for (NodeId m : {add, casts[0], casts[1], narrow})
      if (m >= 0) at_index(gone_, m) = true;
  }

  // The gradient of a norm's input, to which that of the residual is added.
  void backward(NodeId norm, const OpDef& op) {
    const ValueId dx = node(norm).out[0];
    const NodeId add = readers_.only(dx);
    if (!is(add, op::add) || !together(norm, add)) return;
    ValueId other = node(add).in[node(add).in[0] == dx];
    const ValueId sum = node(add).out[0];
    if (other == dx || !alike(other, sum) || !alike(dx, sum) || value(sum).dtype != value(dx).dtype ||
        !is_floating(value(other).dtype))
      return;
    // Where the norm's gradient is, unless what is added comes later.
    NodeId at = norm;
    if (readers_.producer(other) > norm || !readers_.unwritten(g_, add, norm, add)) {
      at = add;
      if (!readers_.may_read_later(g_, norm, add)) return;
      for (size_t o = 1; o < node(norm).out.size(); ++o)
        for (NodeId r : readers_.of(node(norm).out[o]))
          if (r < add) return;
    }
    const NodeId wide_dy = cast_before(node(norm).in[0], norm, at), wide_other = cast_before(other, add, at);
    Node n = node(norm);
    if (wide_dy >= 0) n.in[0] = node(wide_dy).in[0];
    n.in.push_back(wide_other >= 0 ? node(wide_other).in[0] : other);
    n.attrs = make_attrs(op.schema, std::vector<NamedAttr>{{"axes", AttrReader(*n.op, n.attrs).i("axes"_attr)}});
    n.op = &op;
    n.out[0] = sum;
    if (!has_signature(g_, n)) return;
    node(at) = std::move(n);
    for (NodeId m : {at == norm ? add : norm, wide_dy, wide_other})
      if (m >= 0) at_index(gone_, m) = true;
  }

  Graph& g_;
  const Readers readers_;
  std::vector<bool> gone_;
};

}  // namespace

void fuse_norm(Graph& g, const CompileOptions&) { Norms(g).run(); }

}  // namespace holon::graph
