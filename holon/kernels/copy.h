// Copies between arrays of any layout and dtype, and filling.
#pragma once

#include <span>

#include "holon/array/array.h"
#include "holon/array/scalar.h"

namespace holon::kernels {

// dst = src. Shapes are equal; layouts are free; dtypes may differ: floats are truncated to integers, and everything
// but 0 is true. The two do not overlap.
void copy(const Array& src, Array& dst);

// A copy of another dtype.
Array converted(const Array& a, DType dtype);

// The same as copy() for raw memory: strides in bytes, at most kMaxAxes axes, any element size.
void copy_bytes_strided(void* dst, std::span<const int64_t> dst_strides, const void* src,
                        std::span<const int64_t> src_strides, std::span<const int64_t> shape, size_t itemsize);

// a itself if its elements are in order, else a copy in which they are.
Array contiguous(const Array& a);

void fill(Array& out, Scalar value);

}  // namespace holon::kernels
