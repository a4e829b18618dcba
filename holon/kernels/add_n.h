// The sum of several buffers, element by element: what all_reduce and reduce_scatter compute.
#pragma once

#include <cstdint>
#include <span>

#include "holon/array/dtype.h"

namespace holon::kernels {

// dst[i] = src[0][i] + src[1][i] + ..., added in pairs of neighbours, then pairs of these: ((0 + 1) + (2 + 3)) + ...,
// where the first 2^k are a half of more. bool is "or", integers wrap around, float16 and bfloat16 are added in float32
// and rounded once. A source may be dst itself but may not overlap it otherwise. Pre: src is not
// empty. Post: an element's bits depend on the sources' elements alone, not on count, alignment or the processor.
void add_n(void* dst, std::span<const void* const> src, int64_t count, DType dtype);

}  // namespace holon::kernels
