// How the rows of a step's inputs are divided over micro-batches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holon/graph/ir/graph.h"
#include "holon/tensor/tensor.h"

namespace holon::graph {

struct MicroBatches {
  int count = 1;
  std::vector<int8_t> variant_of;           // of each micro-batch; empty: all have equal rows
  std::vector<std::vector<int64_t>> rows;   // of each variant: its rows of each input, 0 for an input without axes
  std::vector<double> shares;               // of each variant: its rows as a part of the batch's
  std::vector<std::vector<int64_t>> parts;  // of each variant: Graph::row_parts
  int variants() const { return static_cast<int>(rows.size()); }
};

// n micro-batches of equal rows where each rank's rows divide. A micro-batch has rows of each rank. Else, if uneven,
// each rank's rows in a balanced split, one more for the first: no more micro-batches than ranks have rows, so that
// none is empty. What the ranks' rows differ by is in the last. Errors (ValueError): rows do not divide, and uneven is
// off; an input's rows are not a multiple of the first input's, so that it is not known how they belong together.
MicroBatches divide_rows(std::span<const Tensor> inputs, int n, bool uneven);

// Rows of one of n equal micro-batches of the input. Errors (ValueError): each rank's rows do not divide.
int64_t equal_rows(const Tensor& input, size_t number, int n);

// Outputs of the variants get the layout that they have in the first. One that has no rows, such as a mean loss, is
// weighed by its variant's part of the batch, so that the mean over the micro-batches is that of the batch: what
// forward makes of the inputs, in floating point. captured: of each variant. Errors (ValueError): other dtypes or
// numbers of axes.
void match_outputs(std::span<Graph> captured, const MicroBatches& all);

}  // namespace holon::graph
