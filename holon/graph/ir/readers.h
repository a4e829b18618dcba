// Who reads what, for passes that move nodes or put several into one.
#pragma once

#include <span>
#include <vector>

#include "holon/base/index.h"
#include "holon/graph/ir/graph.h"

namespace holon::graph {

// A picture of a graph as it was at construction.
class Readers {
 public:
  explicit Readers(const Graph& g);
  // The node that makes the value; -1 for inputs and externals.
  NodeId producer(ValueId v) const { return at_index(producer_, v); }
  // In order; a node that reads the value twice is there twice.
  std::span<const NodeId> of(ValueId v) const {
    const size_t at = to_size(v);
    return {readers_.data() + begin_[at], readers_.data() + begin_[at + 1]};
  }
  bool is_output(ValueId v) const { return at_index(output_, v); }
  // The only reader of v, which is not an output of the graph; else -1.
  NodeId only(ValueId v) const;
  // Whether what node `at` reads is the same after node `until`: no node in between writes to the memory of an external
  // that it sees.
  bool may_read_later(const Graph& g, NodeId at, NodeId until) const { return unwritten(g, at, at, until); }
  // The same of what node `reader` reads, between two others.
  bool unwritten(const Graph& g, NodeId reader, NodeId after, NodeId until) const;

 private:
  std::vector<NodeId> producer_, readers_;
  std::vector<uint32_t> begin_;
  std::vector<bool> output_;
  std::vector<int32_t> external_;             // whose memory a value may be; -1: none's
  std::vector<std::vector<NodeId>> writers_;  // of each external
};

// Takes out the nodes that are marked.
void remove_nodes(Graph& g, const std::vector<bool>& gone);

}  // namespace holon::graph
