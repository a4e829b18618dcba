// Panels of a matrix whose columns are contiguous, for the bodies that are compiled once per instruction set.
#pragma once

#include "holon/kernels/cpu/vectors.h"

namespace holon::kernels::HOLON_ISA {
namespace {

typedef float F4 __attribute__((vector_size(16)));
typedef float F4U __attribute__((vector_size(16), aligned(4), may_alias));

// dst[p, j] (rows of `width`) = src[j * stride + p] for j < 4, p < 4.
HOLON_INLINE void transpose4(const float* src, int64_t stride, float* dst, int64_t width) {
  F4 r0 = *reinterpret_cast<const F4U*>(src), r1 = *reinterpret_cast<const F4U*>(src + stride);
  F4 r2 = *reinterpret_cast<const F4U*>(src + 2 * stride), r3 = *reinterpret_cast<const F4U*>(src + 3 * stride);
  F4 t0 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), t1 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  F4 t2 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), t3 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  *reinterpret_cast<F4U*>(dst) = __builtin_shufflevector(t0, t1, 0, 1, 4, 5);
  *reinterpret_cast<F4U*>(dst + width) = __builtin_shufflevector(t0, t1, 2, 3, 6, 7);
  *reinterpret_cast<F4U*>(dst + 2 * width) = __builtin_shufflevector(t2, t3, 0, 1, 4, 5);
  *reinterpret_cast<F4U*>(dst + 3 * width) = __builtin_shufflevector(t2, t3, 2, 3, 6, 7);
}

#if HOLON_VECTOR_BYTES == 64
// dst[p, j] (rows of `width`) = src[j * stride + p] for j, p < 16.
HOLON_INLINE void transpose16(const float* src, int64_t stride, float* dst, int64_t width) {
  __m512 r[16], t[16];
  HOLON_UNROLL for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(src + i * stride);
  HOLON_UNROLL for (int i = 0; i < 16; i += 2) t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]),
                                               t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  HOLON_UNROLL for (int i = 0; i < 16; i += 4) {
    const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]), c = _mm512_castps_pd(t[i + 2]),
                  d = _mm512_castps_pd(t[i + 3]);
    r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)), r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)), r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  HOLON_UNROLL for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88), t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88),
          t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  HOLON_UNROLL for (int i = 0; i < 4; ++i) {
    _mm512_storeu_ps(dst + i * width, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    _mm512_storeu_ps(dst + (i + 8) * width, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    _mm512_storeu_ps(dst + (i + 4) * width, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
    _mm512_storeu_ps(dst + (i + 12) * width, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
  }
}
#endif

// dst[k, width] = b[k, n], zeros beyond n, where the columns of b (or neither rows nor columns) are contiguous.
template <class T>
void pack_turned(int64_t k, int64_t n, int width, const T* b, int64_t brs, int64_t bcs, T* dst) {
  int64_t done = 0;
  if constexpr (sizeof(T) == 4) {
#if HOLON_VECTOR_BYTES == 64
    for (; brs == 1 && done + 16 <= n; done += 16) {
      const T* s = b + done * bcs;
      int64_t p = 0;
      for (; p + 16 <= k; p += 16) transpose16(s + p, bcs, dst + p * width + done, width);
      for (; p < k; ++p)
        for (int j = 0; j < 16; ++j) dst[p * width + done + j] = s[j * bcs + p];
    }
#endif
    if (brs == 1) {
      int64_t k4 = k & ~int64_t{3};
      for (; done + 4 <= n; done += 4) {
        const T* s = b + done * bcs;
        for (int64_t p = 0; p < k4; p += 4) transpose4(s + p, bcs, dst + p * width + done, width);
        for (int64_t p = k4; p < k; ++p)
          for (int j = 0; j < 4; ++j) dst[p * width + done + j] = s[j * bcs + p];
      }
    }
  }
  for (int64_t j = done; j < n; ++j)
    for (int64_t p = 0; p < k; ++p) dst[p * width + j] = b[p * brs + j * bcs];
  for (int64_t j = n; j < width; ++j)
    for (int64_t p = 0; p < k; ++p) dst[p * width + j] = 0;
}

}  // namespace
}  // namespace holon::kernels::HOLON_ISA
