#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/ir/readers.h"
#include "holon/graph/ir/signatures.h"
#include "holon/graph/passes/fuse.h"
#include "holon/op_names/activation.h"
#include "holon/op_names/arithmetic.h"
#include "holon/op_names/epilogue.h"
#include "holon/op_names/matmul.h"
#include "holon/op_names/reduce.h"
#include "holon/op_names/shape.h"

namespace holon::graph {
namespace {

class Epilogues {
 public:
  explicit Epilogues(Graph& g) : g_(g), gone_(g.nodes.size(), false), readers_(g) {}

  void run() {
    each(&Epilogues::bias_gradient);
    each(&Epilogues::activation);
    readers_ = Readers(g_);
    each(&Epilogues::scale_before);
    each(&Epilogues::scale_after);
    each(&Epilogues::second_operand);
    remove_nodes(g_, gone_);
  }

 private:
  Node& node(NodeId n) { return at_index(g_.nodes, n); }
  bool gone(NodeId n) const { return at_index(gone_, n); }
  void each(void (Epilogues::*pattern)(NodeId)) {
    for (NodeId n = 0; n < static_cast<NodeId>(g_.nodes.size()); ++n)
      if (!gone(n) && is_plain(n)) (this->*pattern)(n);
  }
  // An op of float32, which is the only dtype whose products can finish blocks.
  bool is_plain(NodeId n) {
    const Node& at = node(n);
    return at.kind == NodeKind::kOp && at.op && !at.out.empty() && g_.value(at.out[0]).dtype == float32;
  }
  bool is(NodeId n, const OpDef& op) { return n >= 0 && !gone(n) && is_plain(n) && node(n).op == &op; }
  // What is computed again stays with what is.
  bool together(NodeId a, NodeId b) {
    return node(a).section == node(b).section && node(a).stage == node(b).stage && node(a).pinned == node(b).pinned;
  }

  // Node `at` becomes the op, and `absorbed` goes. False, and nothing is changed, where the layouts do not allow it.
  bool become(NodeId at, NodeId absorbed, const OpDef& op, SmallVec<ValueId, 4> in, SmallVec<ValueId, 2> out,
              const std::vector<NamedAttr>& attrs) {
    Node n = node(at);
    n.op = &op;
    n.attrs = make_attrs(n.op->schema, attrs);
    n.in = std::move(in);
    n.out = std::move(out);
    if (!has_signature(g_, n)) return false;
    node(at) = std::move(n);
    if (absorbed >= 0) at_index(gone_, absorbed) = true;
    return true;
  }

  // linear_weight_grad(dy, x) and the sum of dy over its rows, which the product reads anyway.
  void bias_gradient(NodeId n) {
    if (!is(n, op::linear_weight_grad)) return;
    const ValueId dy = node(n).in[0];
    const Dims& shape = g_.value(dy).shape;
    Dims summed = Dims::filled(shape.size(), 1);
    summed.back() = shape.back();
    for (NodeId s : readers_.of(dy)) {
      if (s < n || !is(s, op::sum) || !together(n, s) || !(g_.value(node(s).out[0]).shape == summed)) continue;
      const NodeId r = readers_.only(node(s).out[0]);
      if (is(r, op::reshape) && together(n, r) && g_.value(node(r).out[0]).shape == Dims{shape.back()}) {
        if (become(n, s, op::linear_gradients, {dy, node(n).in[1]}, {node(n).out[0], node(r).out[0]}, {}))
          at_index(gone_, r) = true;
        return;
      }
      // Somebody else reads the sum as it is: it is made a view of the gradient.
      Value bias = g_.value(node(s).out[0]);
      bias.shape = Dims{shape.back()};
      if (bias.spec && !(bias.spec = without_leading(bias.spec, shape.size()))) return;
      const ValueId made = g_.add_value(bias);
      Node view = node(s);
      view.op = &op::reshape.def();
      view.attrs = make_attrs(view.op->schema, std::vector<NamedAttr>{{"shape", summed}});
      view.in = {made};
      if (has_signature(g_, view) &&
          become(n, -1, op::linear_gradients, {dy, node(n).in[1]}, {node(n).out[0], made}, {}))
        node(s) = std::move(view);
      return;
    }
  }

  // The layout of [n] for that of [1, ..., 1, n]; nullptr where a leading axis is split.
  static const GlobalSpec* without_leading(const GlobalSpec* spec, int axes) {
    NdSbp to = spec->nd_sbp;
    for (int a = 0; a < to.size(); ++a) {
      if (to[a].is_split() && to[a].axis != axes - 1) return nullptr;
      if (to[a].is_split()) to = to.with(a, sbp::split(0));
    }
    return intern_spec(spec->placement, to);
  }

  // relu or gelu of linear. Where backward reads what gelu read, it gets gelu's slope instead.
  void activation(NodeId n) {
    if (!is(n, op::linear)) return;
    const ValueId before = node(n).out[0];
    SmallVec<ValueId, 4> in = node(n).in;
    if (in.size() < 3) in.push_back(kNoValue);
    if (const NodeId relu = readers_.only(before); is(relu, op::relu) && together(n, relu)) {
      in.push_back(kNoValue);
      become(n, relu, op::linear_then, in, {node(relu).out[0]}, {{"then", std::string("relu")}});
      return;
    }
    if (readers_.is_output(before)) return;
    NodeId gelu = -1;
    SmallVec<NodeId, 2> backward;
    for (NodeId r : readers_.of(before)) {
      if (gelu < 0 && is(r, op::gelu) && together(n, r))
        gelu = r;
      else if ((is(r, op::gelu_backward) || is(r, op::gelu_tanh_backward)) && node(r).in[0] != before)
        backward.push_back(r);
      else
        return;
    }
    if (gelu < 0) return;
    const bool by_tanh = AttrReader(op::gelu, node(gelu).attrs).text("approximate"_attr) == "tanh";
    for (NodeId r : backward)
      if (is(r, op::gelu_tanh_backward) != by_tanh) return;
    const ValueId y = node(gelu).out[0];
    if (backward.empty()) {
      in.push_back(kNoValue);
      become(n, gelu, op::linear_then, in, {y}, {{"then", std::string(by_tanh ? "gelu_tanh" : "gelu")}});
      return;
    }
    Value like = g_.value(y);
    const ValueId slope = g_.add_value(like);
    if (!become(n, gelu, op::linear_gelu, in, {y, slope}, {{"approximate", std::string(by_tanh ? "tanh" : "none")}}))
      return;
    for (NodeId r : backward) {
      node(r).op = &op::mul.def();
      node(r).attrs = make_attrs(node(r).op->schema, {});
      node(r).in[1] = slope;
    }
  }

  // A number times an operand of products only becomes theirs.
  void scale_before(NodeId n) {
    if (!is(n, op::mul_scalar) || readers_.is_output(node(n).out[0]) || readers_.of(node(n).out[0]).empty()) return;
    const ValueId x = node(n).in[0], scaled = node(n).out[0];
    if (g_.value(x).dtype != float32 || g_.value(x).spec != g_.value(scaled).spec) return;
    for (NodeId r : readers_.of(scaled)) {
      if (!is(r, op::matmul) || !together(n, r) || node(r).in[0] == node(r).in[1] || !readers_.may_read_later(g_, n, r))
        return;
    }
    const double alpha = AttrReader(op::mul_scalar, node(n).attrs).scalar("value"_attr).as_double();
    const SmallVec<NodeId, 4> products(readers_.of(scaled));
    for (NodeId r : products) {
      SmallVec<ValueId, 4> in = node(r).in;
      for (ValueId& v : in)
        if (v == scaled) v = x;
      // Products that are linear in each operand have the layouts of matmul.
      const bool fits = become(r, -1, op::matmul_scaled, in, node(r).out, {{"alpha", alpha}});
      HOLON_CHECK(fits, "matmul_scaled lacks a layout that matmul has: {}", str(g_, node(r)));
    }
    at_index(gone_, n) = true;
  }

  void scale_after(NodeId n) {
    if (!is(n, op::matmul)) return;
    const NodeId s = readers_.only(node(n).out[0]);
    if (!is(s, op::mul_scalar) || !together(n, s)) return;
    const double alpha = AttrReader(op::mul_scalar, node(s).attrs).scalar("value"_attr).as_double();
    become(n, s, op::matmul_scaled, node(n).in, node(s).out, {{"alpha", alpha}});
  }

  // What is added to a product, or what it is multiplied by, in place of the op that does it.
  void second_operand(NodeId n) {
    const bool linear = is(n, op::linear);
    if (!linear && !(is(n, op::matmul) && g_.value(node(n).in[1]).shape.size() == 2)) return;
    const ValueId product = node(n).out[0];
    const NodeId r = readers_.only(product);
    const bool add = is(r, op::add), mul = is(r, op::mul), relu = is(r, op::relu_backward);
    if ((!add && !mul && !relu) || !together(n, r) || !readers_.may_read_later(g_, n, r)) return;
    const ValueId other = node(r).in[node(r).in[0] == product];
    if (other == product || (relu && node(r).in[0] != product)) return;
    const Value &a = g_.value(product), &b = g_.value(other);
    if (!(a.shape == b.shape) || b.dtype != a.dtype || a.spec != b.spec || !(a.device == b.device)) return;
    SmallVec<ValueId, 4> in = node(n).in;
    if (linear && in.size() < 3) in.push_back(kNoValue);
    in.push_back(other);
    const std::string then = add ? "add" : mul ? "mul" : "relu_backward";
    if (become(r, n, linear ? op::linear_then.def() : op::matmul_then.def(), in, node(r).out, {{"then", then}}))
      node(r).scope = node(n).scope, node(r).site = node(n).site;
  }

  Graph& g_;
  std::vector<bool> gone_;
  Readers readers_;
};

}  // namespace

void fuse_epilogue(Graph& g, const CompileOptions&) { Epilogues(g).run(); }

}  // namespace holon::graph
