// Numbers of the float8 dtypes: rounding to them, and products of them.
#pragma once

#include <algorithm>
#include <cmath>

#include "holon/array/array.h"

namespace holon::kernels {

// The largest finite number: E4M3's is 448, E5M2's 57344.
constexpr float float8_limit(DType dtype) { return dtype == float8_e4m3fn ? 448.0f : 57344.0f; }

// The power of two that brings `largest` closest to the dtype's largest number, and not above it. 1 where largest is 0
// or not finite.
inline float float8_scale(float largest, DType dtype) {
  if (!std::isfinite(largest) || largest == 0) return 1;
  const float limit = float8_limit(dtype);
  // Powers that float32 has, with their inverses.
  const int power = std::clamp(std::ilogb(limit) - std::ilogb(largest), -126, 126);
  const float scale = std::ldexp(1.0f, power);
  return largest * scale > limit ? scale / 2 : scale;
}

// out (of a float8 dtype) = x times scale, rounded to nearest even; what is beyond the largest number becomes it. NaN
// stays, and infinity in E5M2; in E4M3, which has none, it becomes NaN. x: of a floating point dtype; scale: float32, a
// power of two, without axes; out: contiguous, of x's shape.
void quantize_float8(const Array& x, const Array& scale, Array& out);

// out, of the dtype, = x as quantize_float8() rounds it; or out, of x's dtype, = that divided by scale, where infinity
// stays in either dtype. And amax = before, or the largest magnitude in x where that is larger: infinity where one is
// not finite. x and out are of one shape; before and amax: float32 of one shape; both outputs are contiguous.
void round_float8(const Array& x, const Array& scale, const Array& before, DType dtype, Array& out, Array& amax);

// out = float8_scale(largest, dtype): float32 without axes.
void float8_scale_of(const Array& largest, DType dtype, Array& out);

// out[m, n] = a[m, k] b[k, n], of float8 dtypes, times scale_a and scale_b, which are float32 without axes. Sums are
// float32; out is float32, bfloat16 or float16, and contiguous.
void scaled_matmul(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b, Array& out);

// Whether devices of the type have such products of their own.
bool multiplies_float8(DeviceType type);

}  // namespace holon::kernels
