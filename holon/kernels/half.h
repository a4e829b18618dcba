// Half arrays as float32 ones and back, for kernels that compute in float32.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

inline bool is_half(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// A float32 array with the values of a half one. The order of axes in memory is kept where the array is dense, else the
// result is row-major; broadcast axes stay broadcast.
Array to_float(const Array& x);

// Writes a dense float32 array into a half array of the same shape.
void from_float(const Array& x, Array& y);

}  // namespace holon::kernels
