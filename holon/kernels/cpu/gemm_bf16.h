// Products of bfloat16 matrices by the CPU's own instructions, where it has them.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// out = a @ b + bias (may be nullptr) for bfloat16 arrays of 2 or 3 axes with sums in float32. Returns false, with out
// untouched, where the CPU has no such instructions, the strides are not those of rows or columns, or the product is
// too small to be worth it.
bool matmul_bf16(const Array& a, const Array& b, const Array* bias, Array& out);

}  // namespace holon::kernels
