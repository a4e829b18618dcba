// Vector registers of the instruction set that is compiled for, as the vector types of GCC and Clang, for files that
// are compiled once for each; HOLON_ISA names the namespace. Everything has internal linkage, so that no build's code
// can replace another's.
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#define HOLON_VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__F16C__)
#define HOLON_VECTOR_BYTES 32
#else
#define HOLON_VECTOR_BYTES 16
#endif
#if HOLON_VECTOR_BYTES > 16
#include <immintrin.h>
#endif

namespace holon::kernels::HOLON_ISA {
namespace {

constexpr int kVectorBytes = HOLON_VECTOR_BYTES;
#define HOLON_UNROLL _Pragma("GCC unroll 16")
#define HOLON_INLINE inline __attribute__((always_inline))

template <class T>
struct Simd {
  typedef T V __attribute__((vector_size(kVectorBytes)));
  typedef T U __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));  // anywhere in memory
  static constexpr int kWidth = kVectorBytes / static_cast<int>(sizeof(T));
};
template <class T>
using Vec = typename Simd<T>::V;

template <class T>
HOLON_INLINE Vec<T> load(const T* p) {
  return *reinterpret_cast<const typename Simd<T>::U*>(p);
}
template <class T>
HOLON_INLINE void store(T* p, Vec<T> v) {
  *reinterpret_cast<typename Simd<T>::U*>(p) = v;
}
template <class T>
HOLON_INLINE Vec<T> same(T x) {
  return x - Vec<T>{};
}

// The lanes put together by halves: f(a, b) of vectors and of elements.
template <class T, class V, class F>
HOLON_INLINE T fold_lanes(V v, F f) {
  if constexpr (sizeof(V) <= 16) {
    T r = v[0];
    for (int i = 1; i < static_cast<int>(sizeof(V) / sizeof(T)); ++i) r = f(r, v[i]);
    return r;
  } else {
    typedef T Half __attribute__((vector_size(sizeof(V) / 2)));
    Half halves[2];
    __builtin_memcpy(halves, &v, sizeof v);
    return fold_lanes<T>(f(halves[0], halves[1]), f);
  }
}

// The first n lanes of a vector.
#if HOLON_VECTOR_BYTES == 64
typedef __mmask16 Mask;
HOLON_INLINE Mask make_mask(int n, int) { return static_cast<Mask>((1u << n) - 1); }
HOLON_INLINE Vec<float> load(const float* p, Mask m) { return _mm512_maskz_loadu_ps(m, p); }
HOLON_INLINE Vec<double> load(const double* p, Mask m) { return _mm512_maskz_loadu_pd(static_cast<__mmask8>(m), p); }
HOLON_INLINE void store(float* p, Vec<float> v, Mask m) { _mm512_mask_storeu_ps(p, m, v); }
HOLON_INLINE void store(double* p, Vec<double> v, Mask m) { _mm512_mask_storeu_pd(p, static_cast<__mmask8>(m), v); }
#elif HOLON_VECTOR_BYTES == 32
typedef __m256i Mask;
alignas(64) constexpr int32_t kMaskTable[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};
HOLON_INLINE Mask make_mask(int n, int words) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMaskTable + 8 - n * words));
}
HOLON_INLINE Vec<float> load(const float* p, Mask m) { return _mm256_maskload_ps(p, m); }
HOLON_INLINE Vec<double> load(const double* p, Mask m) { return _mm256_maskload_pd(p, m); }
HOLON_INLINE void store(float* p, Vec<float> v, Mask m) { _mm256_maskstore_ps(p, m, v); }
HOLON_INLINE void store(double* p, Vec<double> v, Mask m) { _mm256_maskstore_pd(p, m, v); }
#else
typedef int Mask;
HOLON_INLINE Mask make_mask(int n, int) { return n; }
template <class T>
HOLON_INLINE Vec<T> load(const T* p, Mask m) {
  Vec<T> v = {};
  for (int i = 0; i < m; ++i) v[i] = p[i];
  return v;
}
template <class T>
HOLON_INLINE void store(T* p, Vec<T> v, Mask m) {
  for (int i = 0; i < m; ++i) p[i] = v[i];
}
#endif

}  // namespace
}  // namespace holon::kernels::HOLON_ISA
