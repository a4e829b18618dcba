// A chain of element-wise ops over one rank's arrays, block by block: what one op leaves for the next stays in the
// first cache and never gets its own memory. The ops' own kernels run on windows of a block, so that results are
// those of the ops one by one, bit by bit.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// Whether an op may be a part: element by element, from its operands alone (no random draws, no place in a whole
// tensor).
bool fusible(const OpDef& op);
// Whether it may be one where blocks are the matrices of the last two axes, each on its own: products and softmax as
// well.
bool fusible_by_matrix(const OpDef& op, const Attrs& attrs);

class FusedChain {
 public:
  // One local operand; an input's shape broadcasts to that of the outputs, which is one for all. Strides may be any,
  // and those that are alike in all operands are the fastest.
  struct Operand {
    Dims shape, strides;
    DType dtype;
  };
  // Pre: body's parts are in order and fusible; outputs have dtypes and shapes as the ops infer them.
  FusedChain(const FusedBody& body, std::span<const Operand> in, std::span<const Operand> out);
  ~FusedChain();
  FusedChain(FusedChain&&) noexcept;
  FusedChain& operator=(FusedChain&&) noexcept;

  // Pre: arrays of the shapes, strides and dtypes given before; no output overlaps an operand, except an input that it
  // may_overwrite at the same place. Shared out to threads where it is large. Allocates nothing (but once, when the
  // number of threads has grown). Not for two threads at a time. Errors: those of the kernels (an integer divided by
  // 0).
  void run(std::span<const Array* const> in, std::span<Array* const> out);

  // Whether output `out` may have the memory of input `in`.
  bool may_overwrite(size_t in, size_t out) const;

 private:
  struct Plan;
  std::unique_ptr<Plan> plan_;
};

}  // namespace holon::graph
