// What a step returns: outputs of micro-batches are copied to their place in one tensor, outputs of the step itself are
// in memory that the step allocates for them.
#pragma once

#include <vector>

#include "holon/graph/program/bucket_memory.h"
#include "holon/graph/program/crossings.h"
#include "holon/graph/program/row_order.h"

namespace holon::graph {

class Outputs {
 public:
  Outputs(LoweredValues& values, BucketMemory& memory, Crossings& crossings, const RowOrder& order);

  // Outputs that are there for the micro-batch. last: what is not there does not come.
  void put(int m, bool last = false);
  // Outputs of one instance: the value's own memory where it fills its buffer.
  void finish();

 private:
  ValueId output(size_t o, int m) const { return g_.outputs_of(g_.variant(m))[o]; }
  // Whether the micro-batches' values of an output are rows of one tensor.
  bool joins(size_t o) const;
  // That the rows of an output can come in the batch's order.
  void check_row_order(size_t o) const;
  // What is before the micro-batch's rows along an output's first axis: of the whole tensor or this rank's part.
  int64_t rows_before(size_t o, int m, bool local) const;
  void describe(size_t o);
  void copy(size_t o, int m, const Array* from);
  // Memory that the step allocates for the part.
  void allocate(size_t o, const Dims& shape, DType dtype, Device device);
  void need(ValueId v, int m);
  [[noreturn]] void fail_local(size_t o) const;

  LoweredValues& values_;
  BucketMemory& memory_;
  Crossings& crossings_;
  const RowOrder& order_;
  const Graph& g_;
  const int micro_;
  std::vector<bool> done_;
};

}  // namespace holon::graph
