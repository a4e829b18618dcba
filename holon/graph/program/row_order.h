// Where the rows of a micro-batch are in the batch, on this rank.
#pragma once

#include <optional>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// Rows of this rank's part of a micro-batch, and where they are in its part of the batch.
struct RowPiece {
  int64_t from, to, rows;
};

// A micro-batch has rows of every rank between which the batch's rows are split (Graph::row_parts). What is split
// between as many ranks has one piece on each; what is not, such as a target that all ranks have, has one for each of
// these ranks.
class RowOrder {
 public:
  RowOrder(const Graph& g, int rank);
  // Of a value with rows, made for micro-batch m, by rising `from`. Nothing: the micro-batches simply follow each
  // other, as nothing says how the rows are split, or the batch's rows are on other ranks than the micro-batch's.
  std::optional<std::vector<RowPiece>> of(const Value& v, int m) const;
  bool knows(const Value& v) const { return v.spec && v.shape.size() > 0 && !g_.row_parts_of(0).empty(); }

 private:
  int64_t rows_of(int m) const;
  const Graph& g_;
  const int rank_;
  std::vector<int64_t> start_;  // of each rank's rows in the batch
  int64_t all_ = 0;
};

}  // namespace holon::graph
