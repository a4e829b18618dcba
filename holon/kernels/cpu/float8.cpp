#include "holon/kernels/float8.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"
#include "holon/kernels/gemm.h"

namespace holon::kernels {

namespace {

// Elements that are converted at once, in the nearest cache.
constexpr int64_t kPart = 2048;

float number_of(const Array& a) { return converted(a, float32).data<float>()[0]; }

// Of n numbers; infinity where one is not finite.
float largest_of(const float* p, int64_t n) {
  float largest = 0;
  // NaN is larger than all.
  for (int64_t i = 0; i < n; ++i) largest = std::abs(p[i]) <= largest ? largest : std::abs(p[i]);
  return std::isfinite(largest) ? largest : std::numeric_limits<float>::infinity();
}

void scale_part(float* p, int64_t n, float scale, DType dtype) {
  const float limit = float8_limit(dtype);
  for (int64_t i = 0; i < n; ++i)
    if (std::isfinite(p[i])) p[i] = std::clamp(p[i] * scale, -limit, limit);
}

// Rounds the n <= kPart numbers at p. narrow_scratch: so many of the dtype.
void round_part(float* p, int64_t n, float scale, const Array& wide, const Array& narrow_scratch) {
  Array of_dtype = narrow_scratch.view({n}, {1}), back = wide.view({n}, {1});
  std::copy_n(p, n, back.data<float>());
  scale_part(back.data<float>(), n, scale, of_dtype.dtype);
  copy(back, of_dtype);
  copy(of_dtype, back);
  for (int64_t i = 0; i < n; ++i)
    if (std::isfinite(p[i])) p[i] = back.data<float>()[i] / scale;
}

}  // namespace

void quantize_float8(const Array& x, const Array& scale, Array& out) {
  HOLON_ON_DEVICE(out, quantize_float8, x, scale, out);
  HOLON_CHECK(x.shape == out.shape && is_float8(out.dtype), "quantize_float8: {} does not fit {}", x.shape, out.shape);
  const float factor = number_of(scale);
  Array values = Array::empty(x.shape, float32);
  copy(x, values);
  parallel_for(values.numel(), 8 * kPart, [&](int64_t begin, int64_t end) {
    scale_part(values.data<float>() + begin, end - begin, factor, out.dtype);
  });
  copy(values, out);
}

void round_float8(const Array& x, const Array& scale, const Array& before, DType dtype, Array& out, Array& amax) {
  HOLON_ON_DEVICE(out, round_float8, x, scale, before, dtype, out, amax);
  HOLON_CHECK(x.shape == out.shape && before.shape == amax.shape && out.is_contiguous(),
              "round_float8: {} does not fit {}", x.shape, out.shape);
  const float factor = number_of(scale);
  const bool narrow = is_float8(out.dtype);
  Array values = out.dtype == float32 ? out : Array::empty(x.shape, float32);
  copy(x, values);
  std::atomic<float> largest = 0;
  parallel_for(values.numel(), 8 * kPart, [&](int64_t begin, int64_t end) {
    const Array wide = Array::empty({kPart}, float32), of_dtype = Array::empty({kPart}, dtype);
    float found = 0;
    for (int64_t at = begin; at < end; at += kPart) {
      float* p = values.data<float>() + at;
      const int64_t n = std::min(kPart, end - at);
      found = std::max(found, largest_of(p, n));
      narrow ? scale_part(p, n, factor, dtype) : round_part(p, n, factor, wide, of_dtype);
    }
    float other = largest;
    while (found > other && !largest.compare_exchange_weak(other, found)) {
    }
  });
  if (out.dtype != float32) copy(values, out);
  const Array old = contiguous(before);
  for (int64_t i = 0; i < old.numel(); ++i) amax.data<float>()[i] = std::max(largest.load(), old.data<float>()[i]);
}

void float8_scale_of(const Array& largest, DType dtype, Array& out) {
  HOLON_ON_DEVICE(out, float8_scale_of, largest, dtype, out);
  out.data<float>()[0] = float8_scale(number_of(largest), dtype);
}

bool multiplies_float8(DeviceType type) {
  return KernelVariants<&scaled_matmul>::table[static_cast<size_t>(type)] != nullptr;
}

void scaled_matmul(const Array& a, const Array& b, const Array& scale_a, const Array& scale_b, Array& out) {
  HOLON_ON_DEVICE(out, scaled_matmul, a, b, scale_a, scale_b, out);
  HOLON_CHECK(is_float8(a.dtype) && is_float8(b.dtype), "scaled_matmul: {} and {}", name(a.dtype), name(b.dtype));
  Array product = out.dtype == float32 ? out : Array::empty(out.shape, float32);
  matmul(converted(a, float32), converted(b, float32), product);
  const float scale = number_of(scale_a) * number_of(scale_b);
  float* p = product.data<float>();
  for (int64_t i = 0; i < product.numel(); ++i) p[i] *= scale;
  if (out.dtype != float32) copy(product, out);
}

}  // namespace holon::kernels
