// What elements are computed in, on every device.
#pragma once

#include "holon/array/array.h"
#include "holon/array/scalar.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels {

// A number for row functions. Floats beyond int64 end up at its ends, NaN at 0.
Number number_of(Scalar s);

// The type that a dtype is computed in, and that type as a dtype.
Compute compute_type(DType dtype);
DType dtype_of(Compute compute);

// The array itself if its last axes are one row of equal steps, otherwise a contiguous copy.
Array with_rows(const Array& a, int axes);

// float32 for float16, bfloat16 and float32, float64 for float64. Errors: any other dtype (TypeError), naming the op.
DType float_compute(DType dtype, const char* op);

}  // namespace holon::kernels
