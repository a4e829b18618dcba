// Reductions along axes, and scans.
//
// Sums of floats are accurate to about one rounding whatever the length, layout and number of threads; float16 and
// bfloat16 accumulate in float32 and more. Sums and products of integers and bools are those of int64.
#pragma once

#include "holon/array/array.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels {

// ReduceOp: Sum, Prod, Max, Min (a NaN wins), SumSquares, AbsMax, SumAbs, Mean, Any, All.

// out = op of a over the axes whose bit is set in axes (bit i: axis i). out has the other axes in their order; the
// reduced ones may be left out or have size 1. out's dtype is free: a result is converted (for Any and All it is
// bool, or 0 and 1). Errors: Max, Min or AbsMax of no elements (ValueError).
void reduce(ReduceOp op, const Array& a, uint32_t axes, Array& out);

// out (int64) = the first index along the axis of the largest (smallest) element, a NaN counting as both. out has the
// other axes; the reduced one may have size 1. Errors: an axis of size 0 (ValueError).
void argreduce(bool max, const Array& a, int axis, Array& out);

// out[i] = a[0] + ... + a[i] (times, for cumprod) along the axis; same shape, dtypes free.
void cumsum(const Array& a, int axis, Array& out);
void cumprod(const Array& a, int axis, Array& out);

}  // namespace holon::kernels
