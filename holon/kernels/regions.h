// Copies and sums of regions between arrays with strides.
#pragma once

#include <span>

#include "holon/array/array.h"

namespace holon::kernels {

// Strides in elements; each of dst's elements is addressed once. The two do not overlap. whole_bytes: of the array that
// this region is a part of, where others are written next to it.
void copy_region(std::byte* dst, const Dims& dst_strides, const std::byte* src, const Dims& src_strides,
                 const Dims& shape, int64_t item_bytes, size_t whole_bytes = 0);

// dst = src[0] + src[1] + ..., all sources with the same strides; sums as kernels::add_n does.
// Pre: the last strides are 1 (or that axis has at most one element).
void sum_region(std::byte* dst, const Dims& dst_strides, std::span<const std::byte* const> src, const Dims& src_strides,
                const Dims& shape, DType dtype);

// out = *parts[0] + *parts[1] + ... in this order, as kernels::add_n sums. All have out's shape and dtype; layouts are
// free. No part overlaps out.
void sum_arrays(std::span<const Array* const> parts, Array& out);

}  // namespace holon::kernels
