// Changes to a graph that are collected and made in one sweep, so that a pass takes time linear in the nodes.
#pragma once

#include <vector>

#include "holon/base/index.h"
#include "holon/graph/ir/node_kind.h"

namespace holon::graph {

class Rewrite {
 public:
  explicit Rewrite(Graph& g) : g_(g), dropped_(g.nodes.size(), false) {}

  // The node takes its place before (after) the one that is there now; several in the order of the calls.
  void insert_before(NodeId at, Node n) { insertions_.push_back({2 * at, std::move(n)}); }
  void insert_after(NodeId at, Node n) { insertions_.push_back({2 * at + 1, std::move(n)}); }
  void drop(NodeId n) { at_index(dropped_, n) = true; }
  bool is_dropped(NodeId n) const { return at_index(dropped_, n); }
  // Whoever reads `old` reads `by`, which is there at least as early. Also in nodes that are inserted.
  void replace(ValueId old, ValueId by);
  ValueId replaced(ValueId v);

  // A value like v, under another spec.
  ValueId value_like(ValueId v, const GlobalSpec* spec);

  void commit();

 private:
  struct Insertion {
    NodeId key;
    Node node;
  };
  Graph& g_;
  std::vector<bool> dropped_;
  std::vector<Insertion> insertions_;
  std::vector<ValueId> by_;  // by value; kNoValue: itself
};

// Where a node with the same scope, site, stage and section as another begins.
Node node_like(const Node& of, NodeKind kind);
// A boxing of one value.
Node make_boxing(const Node& like, ValueId from, ValueId to);

bool is_single_boxing(const Node& n);
// Of a kind that is one op's: not boxings and the like.
inline bool is_op(const Node& n) { return n.kind == NodeKind::kOp && n.op; }
// Whether it belongs to each micro-batch.
inline bool is_per_batch(Section s) {
  return s == Section::kForward || s == Section::kBackward || s == Section::kWeight;
}

int64_t logical_bytes(const Value& v);
// Of the largest part that a rank of the placement holds.
int64_t local_bytes(const Value& v);

// The external whose memory each value may be (through views and boxings); -1: its own.
std::vector<int32_t> alias_roots(const Graph& g);

}  // namespace holon::graph
