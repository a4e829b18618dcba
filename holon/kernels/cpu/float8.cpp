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

// Rounds the n <= kPart numbers at p; returns the largest magnitude. scratch: kPart of float32 and of the dtype.
float round_part(float* p, int64_t n, float scale, const Array& wide_scratch, const Array& narrow_scratch) {
  const float limit = float8_limit(narrow_scratch.dtype);
  Array wide = wide_scratch.view({n}, {1}), narrow = narrow_scratch.view({n}, {1});
  float* scaled = wide.data<float>();
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::abs(p[i]);
    // NaN is larger than all.
    largest = magnitude <= largest ? largest : magnitude;
    scaled[i] = std::isfinite(p[i]) ? std::clamp(p[i] * scale, -limit, limit) : 0;
  }
  copy(wide, narrow);
  copy(narrow, wide);
  for (int64_t i = 0; i < n; ++i)
    if (std::isfinite(p[i])) p[i] = scaled[i] / scale;
  return std::isfinite(largest) ? largest : std::numeric_limits<float>::infinity();
}

}  // namespace

void quantize_float8(const Array& x, const Array& scale, Array& out) {
  HOLON_ON_DEVICE(out, quantize_float8, x, scale, out);
  HOLON_CHECK(x.shape == out.shape && is_float8(out.dtype), "quantize_float8: {} does not fit {}", x.shape, out.shape);
  const float factor = number_of(scale), limit = float8_limit(out.dtype);
  Array values = Array::empty(x.shape, float32);
  copy(x, values);
  float* p = values.data<float>();
  parallel_for(values.numel(), 8 * kPart, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (std::isfinite(p[i])) p[i] = std::clamp(p[i] * factor, -limit, limit);
  });
  copy(values, out);
}

void round_float8(const Array& x, const Array& scale, const Array& before, DType dtype, Array& out, Array& amax) {
  HOLON_ON_DEVICE(out, round_float8, x, scale, before, dtype, out, amax);
  HOLON_CHECK(x.shape == out.shape && before.shape == amax.shape && out.is_contiguous(),
              "round_float8: {} does not fit {}", x.shape, out.shape);
  const float factor = number_of(scale);
  Array values = out.dtype == float32 ? out : Array::empty(x.shape, float32);
  copy(x, values);
  std::atomic<float> largest = 0;
  parallel_for(values.numel(), 8 * kPart, [&](int64_t begin, int64_t end) {
    const Array wide = Array::empty({kPart}, float32), narrow = Array::empty({kPart}, dtype);
    float found = 0;
    for (int64_t at = begin; at < end; at += kPart)
      found = std::max(found, round_part(values.data<float>() + at, std::min(kPart, end - at), factor, wide, narrow));
    float other = largest;
    while (found > other && !largest.compare_exchange_weak(other, found)) {
    }
  });
  if (out.dtype != float32) copy(values, out);
  const Array old = contiguous(before);
  for (int64_t i = 0; i < old.numel(); ++i) amax.data<float>()[i] = std::max(largest.load(), old.data<float>()[i]);
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
