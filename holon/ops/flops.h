// Multiplications and additions of products, two for each pair of numbers, by the shapes of a call (OpDef::flops).
#pragma once

#include <algorithm>

#include "holon/registry/op_def.h"

namespace holon::ops {

inline double elements(const Dims& shape) { return static_cast<double>(shape.numel()); }

// Each element of output 0 sums over the last axis of input 0.
inline double product_flops(const CallShapes& c) { return 2 * elements(c.out()) * static_cast<double>(c.in(0).back()); }
// Each element of output 0 sums over all axes of input 0 but the last.
inline double weight_grad_flops(const CallShapes& c) {
  return 2 * elements(c.out()) * elements(c.in(0)) / static_cast<double>(std::max<int64_t>(1, c.in(0).back()));
}

}  // namespace holon::ops
