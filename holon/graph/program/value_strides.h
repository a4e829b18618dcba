// In which order of axes a value is in memory: the one that its reader would copy it to otherwise.
#pragma once

#include "holon/graph/ir/graph.h"
#include "holon/graph/ir/readers.h"

namespace holon::graph {

class ValueStrides {
 public:
  ValueStrides(const Graph& g, int rank) : g_(g), rank_(rank), readers_(g) {}
  // Strides of the node's output, whose part on this rank has the given shape, under which a reshape after
  // transpositions (attention's heads put next to each other) is a window instead of a copy. Empty: any will do, or the
  // op does not choose.
  Dims of(const Node& n, const Dims& shape) const;

 private:
  const Node* only_view(ValueId v) const;

  const Graph& g_;
  const int rank_;
  Readers readers_;
};

}  // namespace holon::graph
