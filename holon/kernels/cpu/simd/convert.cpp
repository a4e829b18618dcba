// Contiguous conversions between all dtypes. Compiled for each instruction set.
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "holon/kernels/cpu/table.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

using f::bits;
using f::from_bits;

// Storage types that are not arithmetic types. A bool is read as a byte that is 0 or not.
struct Bool {
  uint8_t v;
};
struct Half {
  uint16_t v;
};
struct Brain {
  uint16_t v;
};
// A sign, so many bits of exponent and the rest of mantissa; the largest finite number; infinity, or NaN where there is
// none; NaN.
template <int kExponentBits, uint32_t kMost, uint32_t kInfinity, uint32_t kNaN>
struct Eight {
  static constexpr uint32_t most = kMost, infinity = kInfinity, nan = kNaN;
  static constexpr int mantissa_bits = 7 - kExponentBits, bias = (1 << (kExponentBits - 1)) - 1;
  uint8_t v;
};
using E4M3 = Eight<4, 0x7e, 0x7f, 0x7f>;
using E5M2 = Eight<5, 0x7b, 0x7c, 0x7e>;
struct E8M0 {  // an exponent
  uint8_t v;
};

HOLON_FN float load(Half h) {
  uint32_t sign = static_cast<uint32_t>(h.v & 0x8000u) << 16, rest = h.v & 0x7fffu;
  float normal = from_bits((rest << 13) + 0x38000000u);
  float special = from_bits(0x7f800000u | (rest & 0x3ffu) << 13);
  float tiny = static_cast<float>(static_cast<int>(rest)) * 5.9604644775390625e-8f;
  float v = rest < 0x400u ? tiny : normal;
  v = rest >= 0x7c00u ? special : v;
  return from_bits(bits(v) | sign);
}
HOLON_FN float load(Brain b) { return from_bits(static_cast<uint32_t>(b.v) << 16); }
template <int e, uint32_t m, uint32_t i, uint32_t n>
HOLON_FN float load(Eight<e, m, i, n> x) {
  using T = Eight<e, m, i, n>;
  constexpr uint32_t kShift = static_cast<uint32_t>(23 - T::mantissa_bits);
  constexpr uint32_t kBias = static_cast<uint32_t>(127 - T::bias) << 23;
  const uint32_t sign = static_cast<uint32_t>(x.v & 0x80u) << 24, rest = x.v & 0x7fu;
  const float normal = from_bits((rest << kShift) + kBias);
  // In units of the smallest number.
  const float tiny = static_cast<float>(static_cast<int>(rest)) *
      from_bits(static_cast<uint32_t>(128 - T::bias - T::mantissa_bits) << 23);
  float v = rest < (1u << T::mantissa_bits) ? tiny : normal;
  v = rest > m ? from_bits(rest == i && i != n ? 0x7f800000u : 0x7fc00000u) : v;
  return from_bits(bits(v) | sign);
}
HOLON_FN float load(E8M0 x) {
  const uint32_t e = x.v;
  return from_bits(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : e << 23);
}
HOLON_FN int32_t load(Bool b) { return b.v != 0; }
template <class T>
HOLON_FN T load(T x) {
  return x;
}

// Rounds to nearest even.
HOLON_FN void store(float x, Half* h) {
  uint32_t u = bits(x), sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  uint32_t tiny = bits(from_bits(u) + 0.5f) - 0x3f000000u;
  uint32_t normal = (u + 0xc8000fffu + ((u >> 13) & 1u)) >> 13;
  uint32_t v = u < 0x38800000u ? tiny : normal;
  v = u >= 0x47800000u ? 0x7c00u : v;
  v = u > 0x7f800000u ? 0x7e00u : v;
  h->v = static_cast<uint16_t>(v | sign);
}
HOLON_FN void store(float x, Brain* b) {
  uint32_t u = bits(x);
  uint32_t v = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  b->v = static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : v);
}
// Rounds to nearest even; what is larger than the largest number becomes infinity, or NaN.
template <int e, uint32_t m, uint32_t i, uint32_t n>
HOLON_FN void store(float x, Eight<e, m, i, n>* y) {
  using T = Eight<e, m, i, n>;
  constexpr uint32_t kShift = static_cast<uint32_t>(23 - T::mantissa_bits);
  constexpr uint32_t kBias = static_cast<uint32_t>(127 - T::bias) << T::mantissa_bits;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - T::bias) << 23;
  // Added to a smaller number, what is left of the sum is a multiple of y's smallest number.
  constexpr uint32_t kUnit = static_cast<uint32_t>(127 + 23 + 1 - T::bias - T::mantissa_bits) << 23;
  const uint32_t u = bits(x), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
  const uint32_t tiny = bits(from_bits(a) + from_bits(kUnit)) - kUnit;
  const uint32_t normal = ((a + ((1u << (kShift - 1)) - 1u) + ((a >> kShift) & 1u)) >> kShift) - kBias;
  uint32_t v = a < kSmallestNormal ? tiny : normal;
  v = v > m ? i : v;
  v = a > 0x7f800000u ? n : v;
  y->v = static_cast<uint8_t>(v | sign);
}
// Rounds to nearest, halves upwards; 0 and negative numbers become NaN.
HOLON_FN void store(float x, E8M0* y) {
  const uint32_t u = bits(x);
  uint32_t v = (u + 0x400000u) >> 23;
  v = u <= 0x400000u ? 0u : v;
  v = v > 254u || u - 1u >= 0x7f800000u ? 255u : v;
  y->v = static_cast<uint8_t>(v);
}
// By way of float32, as in PyTorch and ml_dtypes.
template <class S, int e, uint32_t m, uint32_t i, uint32_t n>
HOLON_FN void store(S x, Eight<e, m, i, n>* y) {
  store(static_cast<float>(x), y);
}
template <class S>
HOLON_FN void store(S x, E8M0* y) {
  store(static_cast<float>(x), y);
}
template <class S>
HOLON_FN void store(S x, Half* h) {
  store(static_cast<float>(x), h);
}
template <class S>
HOLON_FN void store(S x, Brain* b) {
  store(static_cast<float>(x), b);
}
template <class S>
HOLON_FN void store(S x, Bool* b) {
  b->v = x != S(0);
}
template <class S, class T>
HOLON_FN void store(S x, T* y) {
  // Floats reach the small integers by way of int32, so that values out of range wrap around alike everywhere.
  if constexpr (f::IsFloat<S>::value && sizeof(T) == 1)
    *y = static_cast<T>(static_cast<int32_t>(x));
  else
    *y = static_cast<T>(x);
}

template <class S, class T>
void convert(const void* src, void* dst, int64_t n) {
  const S* x = static_cast<const S*>(src);
  T* y = static_cast<T*>(dst);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(load(x[i]), &y[i]);
}

#ifdef __F16C__
template <>
void convert<Half, float>(const void* src, void* dst, int64_t n) {
  const uint16_t* x = static_cast<const uint16_t*>(src);
  float* y = static_cast<float*>(dst);
  int64_t i = 0;
#ifdef __AVX512F__
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i))));
#endif
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  for (; i < n; ++i) y[i] = _cvtsh_ss(x[i]);
}
template <>
void convert<float, Half>(const void* src, void* dst, int64_t n) {
  const float* x = static_cast<const float*>(src);
  uint16_t* y = static_cast<uint16_t*>(dst);
  int64_t i = 0;
#ifdef __AVX512F__
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) y[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}
#endif

template <class S>
void fill(ConvertFn* to) {
  to[0] = convert<S, Bool>;
  to[1] = convert<S, uint8_t>;
  to[2] = convert<S, int8_t>;
  to[3] = convert<S, int32_t>;
  to[4] = convert<S, int64_t>;
  to[5] = convert<S, Half>;
  to[6] = convert<S, Brain>;
  to[7] = convert<S, float>;
  to[8] = convert<S, double>;
  to[9] = convert<S, E4M3>;
  to[10] = convert<S, E5M2>;
  to[11] = convert<S, E8M0>;
}

}  // namespace

void fill_convert(Table& t) {
  fill<Bool>(t.convert[0]);
  fill<uint8_t>(t.convert[1]);
  fill<int8_t>(t.convert[2]);
  fill<int32_t>(t.convert[3]);
  fill<int64_t>(t.convert[4]);
  fill<Half>(t.convert[5]);
  fill<Brain>(t.convert[6]);
  fill<float>(t.convert[7]);
  fill<double>(t.convert[8]);
  fill<E4M3>(t.convert[9]);
  fill<E5M2>(t.convert[10]);
  fill<E8M0>(t.convert[11]);
}

}  // namespace holon::kernels::HOLON_ISA
