#include <algorithm>
#include <queue>

#include "holon/base/index.h"
#include "holon/graph/passes/chains.h"
#include "holon/graph/passes/fuse.h"
#include "holon/graph/program/fused.h"

namespace holon::graph {
namespace {

constexpr size_t kMostParts = 16, kMostInputs = 10;
// Larger matrices leave the cache before the next part reads them.
constexpr int64_t kMostBytes = int64_t{1} << 20;

class Matrices {
 public:
  explicit Matrices(Graph& g) : g_(g), readers_(g), taken_(g.nodes.size(), false), gone_(g.nodes.size(), false) {}

  void run() {
    for (NodeId last = static_cast<NodeId>(g_.nodes.size()) - 1; last >= 0; --last) {
      if (!eligible(last) || fusible(*node(last).op)) continue;
      std::vector<NodeId> members = chain(last);
      if (members.size() < 2) continue;
      add_neighbours(members, last);
      for (NodeId m : members) at_index(taken_, m) = true;
      make_chain(g_, readers_, members, last, gone_);
    }
    remove_nodes(g_, gone_);
  }

 private:
  const Node& node(NodeId n) const { return at_index(g_.nodes, n); }
  const Value& result(NodeId n) const { return g_.value(node(n).out[0]); }

  bool eligible(NodeId at) const {
    const Node& n = node(at);
    if (at_index(taken_, at) || n.kind != NodeKind::kOp || n.draw >= 0 || n.out.size() != 1 || !n.op ||
        !fusible_by_matrix(*n.op, n.attrs))
      return false;
    const Value& out = result(at);
    const Dims& shape = out.shape;
    if (shape.size() < 3 || (out.dtype != float32 && out.dtype != float64) ||
        (out.spec && out.spec->nd_sbp.has_partial()))
      return false;
    const int64_t matrix = shape[shape.size() - 1] * shape[shape.size() - 2];
    if (matrix * static_cast<int64_t>(size_bytes(out.dtype)) > kMostBytes || matrix == 0 || shape.numel() / matrix < 2)
      return false;
    if (std::any_of(n.in.begin(), n.in.end(),
                    [&](ValueId v) { return v == kNoValue || !(g_.value(v).device == out.device); }))
      return false;
    // With one matrix for all, the rows are better multiplied together.
    return n.op->schema.n_inputs != 2 || fusible(*n.op) || g_.value(n.in[1]).shape.size() >= 3;
  }

  bool alike(NodeId a, NodeId b) const {
    const Value &x = result(a), &y = result(b);
    return node(a).section == node(b).section && node(a).stage == node(b).stage && node(a).pinned == node(b).pinned &&
        x.spec == y.spec && x.device == y.device && x.shape.size() == y.shape.size() &&
        std::equal(x.shape.begin(), x.shape.end() - 2, y.shape.begin());
  }

  // Whether the node can run where `last` is, as a member.
  bool joins(NodeId n, const std::vector<NodeId>& members, NodeId last) const {
    return eligible(n) && alike(n, last) && read_later_only(readers_, node(n), members, last) &&
        readers_.may_read_later(g_, n, last);
  }

  // From `last` towards the inputs. Where somebody else reads a candidate, too, he may be a member as well.
  std::vector<NodeId> chain(NodeId last) const {
    std::vector<NodeId> members{last};
    std::priority_queue<NodeId> candidates;
    auto add = [&](NodeId m) {
      members.push_back(m);
      for (ValueId v : node(m).in)
        if (NodeId p = readers_.producer(v); p >= 0) candidates.push(p);
    };
    members.clear();
    add(last);
    NodeId before = last;
    while (!candidates.empty() && members.size() < kMostParts) {
      const NodeId p = candidates.top();
      candidates.pop();
      if (p == before || !eligible(p) || !alike(p, last)) continue;
      before = p;
      std::vector<NodeId> with = members;
      for (NodeId r : readers_.of(node(p).out[0]))
        if (r < last && std::find(with.begin(), with.end(), r) == with.end() && joins(r, with, last)) with.push_back(r);
      if (!joins(p, with, last)) continue;
      std::vector<NodeId> all = with;
      all.push_back(p);
      std::sort(all.begin(), all.end());
      if (all.size() > kMostParts || inputs_of(g_, all).size() > kMostInputs) continue;
      for (size_t i = members.size(); i < with.size(); ++i) add(with[i]);
      add(p);
    }
    std::sort(members.begin(), members.end());
    return members;
  }

  // Whose memory the value is, through views.
  ValueId root(ValueId v) const {
    for (NodeId p = readers_.producer(v); p >= 0 && node(p).kind == NodeKind::kOp && node(p).op && node(p).op->view;
         p = readers_.producer(v))
      v = node(p).in[0];
    return v;
  }

  // Products in between that read what a member reads: it is in the cache.
  void add_neighbours(std::vector<NodeId>& members, NodeId last) const {
    std::vector<ValueId> read;
    for (ValueId v : inputs_of(g_, members)) read.push_back(root(v));
    for (NodeId n = members[0] + 1; n < last && members.size() < kMostParts; ++n) {
      if (std::find(members.begin(), members.end(), n) != members.end() || !eligible(n) || fusible(*node(n).op) ||
          !joins(n, members, last))
        continue;
      const auto& in = node(n).in;
      if (std::none_of(in.begin(), in.end(),
                       [&](ValueId v) { return std::find(read.begin(), read.end(), root(v)) != read.end(); }))
        continue;
      std::vector<NodeId> with = members;
      with.push_back(n);
      std::sort(with.begin(), with.end());
      if (inputs_of(g_, with).size() <= kMostInputs) members = with;
    }
  }

  Graph& g_;
  const Readers readers_;
  std::vector<bool> taken_, gone_;
};

}  // namespace

void fuse_matrices(Graph& g, const CompileOptions&) { Matrices(g).run(); }

}  // namespace holon::graph
