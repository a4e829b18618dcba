#include <algorithm>

#include "holon/base/index.h"
#include "holon/dispatch/stretch.h"
#include "holon/graph/ir/readers.h"
#include "holon/graph/ir/signatures.h"
#include "holon/graph/passes/fuse.h"
#include "holon/op_names/arithmetic.h"
#include "holon/op_names/shape.h"

namespace holon::graph {
namespace {

class Slices {
 public:
  explicit Slices(Graph& g) : g_(g), readers_(g), gone_(g.nodes.size(), false) {}

  void run() {
    // The last sum of a row of them comes first: it has all the pieces.
    for (NodeId n = static_cast<NodeId>(g_.nodes.size()) - 1; n >= 0; --n)
      if (is(n, op::add)) join(n);
    remove_nodes(g_, gone_);
  }

 private:
  struct Piece {
    NodeId node;
    int64_t begin, end;
  };

  Node& node(NodeId n) { return at_index(g_.nodes, n); }
  bool is(NodeId n, const OpDef& op) {
    return n >= 0 && !at_index(gone_, n) && node(n).kind == NodeKind::kOp && node(n).op && node(n).op == &op;
  }
  bool together(NodeId a, NodeId b) {
    const Node &x = node(a), &y = node(b);
    return x.section == y.section && x.stage == y.stage && x.pinned == y.pinned && x.variant == y.variant;
  }
  bool alike(ValueId a, ValueId b) const {
    const Value &x = g_.value(a), &y = g_.value(b);
    return x.spec == y.spec && x.device == y.device && x.dtype == y.dtype;
  }

  // The piece of an axis that a slice_backward puts into zeros; false if it is none, or has gaps.
  bool piece(NodeId n, NodeId root, int* axis, Piece* p) {
    const Node& x = node(n);
    const auto at = stretch_of(AttrReader(*x.op, x.attrs), g_.value(x.out[0]).shape);
    if (!at || (*axis >= 0 && *axis != at->axis)) return false;
    *axis = at->axis;
    *p = {n, at->begin, at->end};
    return alike(x.in[0], node(root).out[0]) && readers_.may_read_later(g_, n, root);
  }

  // The pieces that v is the sum of, and the sums on the way.
  bool collect(ValueId v, NodeId reader, NodeId root, int* axis, std::vector<Piece>* pieces,
               std::vector<NodeId>* sums) {
    const NodeId n = readers_.producer(v);
    if (n < 0 || readers_.only(v) != reader || !together(n, root) || !alike(v, node(root).out[0])) return false;
    if (is(n, op::add)) {
      sums->push_back(n);
      return collect(node(n).in[0], n, root, axis, pieces, sums) && collect(node(n).in[1], n, root, axis, pieces, sums);
    }
    Piece p;
    if (!is(n, op::slice_backward) || !piece(n, root, axis, &p)) return false;
    pieces->push_back(p);
    return true;
  }

  void join(NodeId root) {
    int axis = -1;
    std::vector<Piece> pieces;
    std::vector<NodeId> sums;
    for (ValueId v : SmallVec<ValueId, 4>(node(root).in))
      if (!collect(v, root, root, &axis, &pieces, &sums)) return;
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    int64_t at = 0;
    for (const Piece& p : pieces) {
      if (p.begin != at || p.end <= p.begin) return;
      at = p.end;
    }
    if (at != g_.value(node(root).out[0]).shape[axis]) return;
    Node n = node(root);
    n.op = &op::cat.def();
    n.attrs = make_attrs(n.op->schema, std::vector<NamedAttr>{{"dim", static_cast<int64_t>(axis)}});
    n.in = {};
    for (const Piece& p : pieces) n.in.push_back(node(p.node).in[0]);
    if (!has_signature(g_, n)) return;
    node(root) = std::move(n);
    for (const Piece& p : pieces) at_index(gone_, p.node) = true;
    for (NodeId s : sums) at_index(gone_, s) = true;
  }

  Graph& g_;
  const Readers readers_;
  std::vector<bool> gone_;
};

}  // namespace

void join_slices(Graph& g, const CompileOptions&) { Slices(g).run(); }

}  // namespace holon::graph
