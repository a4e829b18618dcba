// The mathematics of the element-wise operations for one element: branch-free in float32, so that a compiler makes
// vector loops of it. float32 results are within a few units in the last place; float64 has the most used functions in
// functors64.h and takes the rest from the C library.
//
// Everything is in a namespace of its own for each instruction set (HOLON_ISA), so that no linker takes the body made
// for one set for another. Comparisons are written so that a NaN passes through.
#pragma once

#include <cstdint>

#ifndef HOLON_ISA
#define HOLON_ISA isa_generic
#endif

// Whether this is the text for devices, which tests compile for the host as well (tests/cuda/emulator).
#if defined(__CUDA_ARCH__) || defined(HOLON_EMULATED)
#define HOLON_DEVICE_TEXT 1
#else
#define HOLON_DEVICE_TEXT 0
#endif

#ifdef __CUDACC__
#define HOLON_FN __host__ __device__ __forceinline__
#else
#define HOLON_FN [[gnu::always_inline]] inline
#endif

namespace holon::kernels::HOLON_ISA::f {

HOLON_FN uint32_t bits(float x) { return __builtin_bit_cast(uint32_t, x); }
HOLON_FN float from_bits(uint32_t b) { return __builtin_bit_cast(float, b); }
HOLON_FN uint64_t bits(double x) { return __builtin_bit_cast(uint64_t, x); }
HOLON_FN double from_bits64(uint64_t b) { return __builtin_bit_cast(double, b); }

template <class T>
struct IsFloat {
  static constexpr bool value = false;
};
template <>
struct IsFloat<float> {
  static constexpr bool value = true;
};
template <>
struct IsFloat<double> {
  static constexpr bool value = true;
};

// Adding this number and taking it away again rounds to an integer, half to even, for |x| < 2^22 (2^51).
inline constexpr float kRound = 12582912.f;
inline constexpr double kRoundD = 6755399441055744.0;

template <class T>
HOLON_FN T abs(T x) {
  return x < T(0) ? -x : x;
}
HOLON_FN float abs(float x) { return __builtin_fabsf(x); }
HOLON_FN double abs(double x) { return __builtin_fabs(x); }
HOLON_FN float sqrt(float x) { return __builtin_sqrtf(x); }
HOLON_FN double sqrt(double x) { return __builtin_sqrt(x); }

// a b + c. On a device it is rounded once, whatever the compiler may do with other products and sums: those of separate
// operations stay separate where several are compiled into one kernel. Elsewhere it is what the instruction set has;
// the other products and sums of the CPU's element-wise loops are compiled without contraction, so that an element's
// bits do not depend on whether it is in a vector or in a rest. A source that defines HOLON_UNFUSED rounds twice.
#if HOLON_DEVICE_TEXT && !defined(HOLON_UNFUSED)
HOLON_FN float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
HOLON_FN double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
#elif !defined(HOLON_UNFUSED) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
HOLON_FN float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
HOLON_FN double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
HOLON_FN float fma(float a, float b, float c) { return a * b + c; }
HOLON_FN double fma(double a, double b, double c) { return a * b + c; }
#endif

template <class T>
HOLON_FN T clamp(T x, T low, T high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// 0, or NaN for NaN.
template <class T>
HOLON_FN T nan_only(T x) {
  if constexpr (IsFloat<T>::value)
    return x != x ? x : T(0);
  else
    return T(0);
}
template <class T>
HOLON_FN bool is_inf(T x) {
  if constexpr (IsFloat<T>::value)
    return abs(x) == static_cast<T>(__builtin_inf());
  else
    return false;
}
template <class T>
HOLON_FN bool is_finite(T x) {
  if constexpr (IsFloat<T>::value)
    return abs(x) < static_cast<T>(__builtin_inf());
  else
    return true;
}

// Rounding; the identity for integers.
#define HOLON_ROUNDING(name)                                      \
  template <class T>                                              \
  HOLON_FN T name(T x) {                                          \
    return x;                                                     \
  }                                                               \
  HOLON_FN float name(float x) { return __builtin_##name##f(x); } \
  HOLON_FN double name(double x) { return __builtin_##name(x); }
HOLON_ROUNDING(floor)
HOLON_ROUNDING(ceil)
HOLON_ROUNDING(rint)
HOLON_ROUNDING(trunc)
#undef HOLON_ROUNDING

// The polynomial with the coefficients c, from the constant on, in a tree of short dependence (Estrin's).
template <const auto& c, int begin, int n, class T>
HOLON_FN T tree(T x, T x2, T x4, T x8, T x16) {
  constexpr auto c0 = c[begin];  // a value, so that no other device needs the table itself
  if constexpr (n == 1) {
    return c0;
  } else if constexpr (n == 2) {
    constexpr auto c1 = c[begin + 1];
    return fma(T(c1), x, T(c0));
  } else if constexpr (n <= 4)
    return fma(tree<c, begin + 2, n - 2>(x, x2, x4, x8, x16), x2, tree<c, begin, 2>(x, x2, x4, x8, x16));
  else if constexpr (n <= 8)
    return fma(tree<c, begin + 4, n - 4>(x, x2, x4, x8, x16), x4, tree<c, begin, 4>(x, x2, x4, x8, x16));
  else if constexpr (n <= 16)
    return fma(tree<c, begin + 8, n - 8>(x, x2, x4, x8, x16), x8, tree<c, begin, 8>(x, x2, x4, x8, x16));
  else
    return fma(tree<c, begin + 16, n - 16>(x, x2, x4, x8, x16), x16, tree<c, begin, 16>(x, x2, x4, x8, x16));
}
template <const auto& c, class T>
HOLON_FN T polynomial(T x) {
  T x2 = x * x, x4 = x2 * x2, x8 = x4 * x4;
  return tree<c, 0, sizeof(c) / sizeof(c[0])>(x, x2, x4, x8, x8 * x8);
}

// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2.
inline constexpr float kExp[] = {0.5000000095694692f, 0.16666518303905442f, 0.041666204166072404f,
                                 0.008368953708681669f, 0.0013950600297999128f};
// e^r - 1
HOLON_FN float exp_less_1(float r) { return fma(polynomial<kExp>(r), r * r, r); }

// x = n ln 2 + r; t holds n in its low bits.
struct Reduced {
  float r, t;
};
HOLON_FN Reduced reduce_by_ln2(float x) {
  float t = fma(x, 1.44269504088896341f, kRound);
  float k = t - kRound;
  return {fma(-k, 1.428606765330187e-6f, fma(-k, 0.693145751953125f, x)), t};
}
HOLON_FN int power_of(float t) { return static_cast<int>(bits(t) - bits(kRound)); }
// 2^n as a number for -126 <= n <= 127 (the exponent of kRound leaves the 32 bits).
HOLON_FN float power_of_two(float t) { return from_bits((bits(t) << 23) + 0x3f800000u); }

// Results below the normal range are 0.
HOLON_FN float exp(float x) {
  auto [r, t] = reduce_by_ln2(x);
  // n = 128 is right too when added to the exponent.
  float v = from_bits(bits(1.f + exp_less_1(r)) + (bits(t) << 23));
  v = x <= 88.7228317f ? v : x * __builtin_inff();  // infinity, or NaN for NaN
  return x < -87.3365402f ? 0.f : v;
}

// e^x for x <= 0.
HOLON_FN float exp_nonpositive(float x) {
  auto [r, t] = reduce_by_ln2(x);
  float v = (1.f + exp_less_1(r)) * power_of_two(t);
  return x < -87.3365402f ? 0.f : v;
}

HOLON_FN float expm1(float x) {
  auto [r, t] = reduce_by_ln2(clamp(x, -40.f, 89.f));
  float tail = exp_less_1(r);
  // 2^n (1 + tail) - 1, with 2^n halved so that n = 128 does not overflow; tail stays apart where n is 0.
  float half = from_bits(static_cast<uint32_t>(power_of(t) + 126) << 23);
  return 2.f * fma(half, tail, half - 0.5f);
}

HOLON_FN float exp2(float x) {
  float t = x + kRound;
  float r = (x - (t - kRound)) * 0.693147180559945f;
  float v = from_bits(bits(1.f + exp_less_1(r)) + (bits(t) << 23));
  v = x < 128.f ? v : x * __builtin_inff();
  return x < -126.f ? 0.f : v;
}

struct Split {
  float fraction;  // of the mantissa in [sqrt(1/2), sqrt(2)), less 1
  float exponent;
};
HOLON_FN Split split_exponent(float x) {
  bool tiny = x < 1.17549435e-38f;
  float y = tiny ? x * 8388608.f : x;
  uint32_t b = bits(y) - 0x3f3504f3u;  // sqrt(1/2)
  int e = static_cast<int>(b) >> 23;
  float m = from_bits((b & 0x007fffffu) + 0x3f3504f3u);
  return {m - 1.f, static_cast<float>(e) - (tiny ? 23.f : 0.f)};
}
// log(1 + v) - v for 1 + v in [sqrt(1/2), sqrt(2)).
inline constexpr float kLog[] = {0.3333331672746511f,   -0.2500081042808719f, 0.20002286083855148f,
                                 -0.16624553142958048f, 0.1418119611868325f,  -0.13128767651584974f,
                                 0.12881622364130882f,  -0.07859545776230224f};
HOLON_FN float log_tail(float v) { return v * v * fma(polynomial<kLog>(v), v, -0.5f); }
HOLON_FN float log_limits(float x, float v) {
  const float inf = __builtin_inff();
  v = x == inf ? inf : v;
  v = x == 0.f ? -inf : v;
  return (x < 0.f) | (x != x) ? __builtin_nanf("") : v;
}
HOLON_FN float log_positive(float x) {
  auto [v, e] = split_exponent(x);
  return fma(e, 0.693145751953125f, v + fma(e, 1.428606765330187e-6f, log_tail(v)));
}
HOLON_FN float log(float x) { return log_limits(x, log_positive(x)); }
HOLON_FN float log2(float x) {
  auto [v, e] = split_exponent(x);
  // log2(e) = 1 + 0.4427: the part of v itself stays exact.
  float t = log_tail(v);
  return log_limits(x, e + (v + fma(0.44269504088896341f, v + t, t)));
}
HOLON_FN float log10(float x) {
  auto [v, e] = split_exponent(x);
  float t = log_tail(v);
  // 0.30102539 has 12 trailing zero bits: e times it is exact.
  return log_limits(x, fma(e, 0.301025390625f, fma(0.43429448190325182f, v + t, e * 4.60503898119521e-6f)));
}
HOLON_FN float log1p(float x) {
  float u = 1.f + x;
  float v = log(u) + (x - (u - 1.f)) / u;
  v = f::abs(x) < 1e-5f ? x - 0.5f * x * x : v;
  return (x == __builtin_inff()) | (u == 0.f) ? log_limits(u, v) : v;
}

HOLON_FN float sigmoid(float x) { return 1.f / (1.f + exp(-x)); }
HOLON_FN float tanh(float x) {
  float e = expm1(clamp(x + x, -40.f, 40.f));
  return e / (e + 2.f);
}
// log(1 + e^x)
HOLON_FN float softplus(float x) {
  float e = exp_nonpositive(-f::abs(x)), u = 1.f + e;
  // What u lost by rounding, over u; where that is much of the sum, 1 / u is 2 - u.
  return (x < 0.f ? 0.f : x) + fma(e - (u - 1.f), 2.f - u, log_positive(u));
}
// tanh(softplus(x)), with w = e^x: (w^2 + 2w) / (w^2 + 2w + 2)
HOLON_FN float tanh_softplus(float x) {
  float w = exp(x > 20.f ? 20.f : x);
  float n = w * (w + 2.f);
  return n / (n + 2.f);
}

// -log of the normal distribution's upper tail at z in [0, 10]; beyond 6 only small enough and rising.
inline constexpr float kTail[] = {0.69314718055994529f,    0.79788666318282708f,     0.31828581628250668f,
                                  0.036430482748064014f,   -0.0049617260596014883f,  0.0001475945203155568f,
                                  0.00010641416112968855f, -2.2379753083977127e-05f, 1.5436806557740331e-06f};
// min(|x|, 10). NaN gives 10.
HOLON_FN float magnitude_to_10(float x) {
  uint32_t b = bits(x) & 0x7fffffffu;
  return from_bits(b < 0x41200000u ? b : 0x41200000u);
}
HOLON_FN float upper_tail(float z) {
  auto [r, t] = reduce_by_ln2(-polynomial<kTail>(z));
  return (1.f + exp_less_1(r)) * power_of_two(t);
}
HOLON_FN float gelu(float x) {
  float z = magnitude_to_10(x);
  return fma(-z, upper_tail(z), x < 0.f ? 0.f : x);
}
// The upper tail over e^(-z^2 / 2), for z in [0, 5.6]; the end beyond.
inline constexpr float kMills[] = {0.4999999887572865f,      -0.3989412364831468f,    0.24998341220711146f,
                                   -0.13287519464369688f,    0.062145866235474294f,   -0.025878523967410614f,
                                   0.009464112229638605f,    -0.0029247461783835694f, 0.0007223015389145608f,
                                   -0.00013337787356441686f, 1.6958196644425545e-05f, -1.3066050326723736e-06f,
                                   4.557138527211522e-08f};
HOLON_FN float gelu_slope(float x) {
  float z = f::abs(x), e = exp_nonpositive(-0.5f * x * x);
  float h = e * polynomial<kMills>(z > 5.6f ? 5.6f : z);
  return fma(x, e * 0.3989422804014327f, x > 0.f ? 1.f - h : h);
}
// The same, and gelu(x), which is made of the same tail.
HOLON_FN float gelu_and_slope(float x, float* slope) {
  float z = f::abs(x), e = exp_nonpositive(-0.5f * x * x);
  float h = e * polynomial<kMills>(z > 5.6f ? 5.6f : z);
  *slope = fma(x, e * 0.3989422804014327f, x > 0.f ? 1.f - h : h);
  return fma(-magnitude_to_10(x), h, x < 0.f ? 0.f : x);
}

inline constexpr float kErf[] = {1.1283791666278349f,     0.6366198345777202f,     0.10277127711702584f,
                                 -0.019117694582433935f,  -0.0002530619569939477f, 0.0017993552949804653f,
                                 -0.0007406871680098887f, 0.00016748157265496946f, -2.1354749378371354e-05f,
                                 1.1933145220211075e-06f};
// 1 - exp(-q) with a polynomial q = -log(erfc(|x|)).
HOLON_FN float erf(float x) {
  float z = f::abs(x);
  z = z > 4.f ? 4.f : z;
  float q = polynomial<kErf>(z) * z;
  float v = -expm1(-q);
  return x < 0.f ? -v : v;
}

// sin and cos after x = n pi/2 + r, with the reduction in float64: right for |x| up to kTrigLimit.
inline constexpr float kTrigLimit = 1e6f;
HOLON_FN float sin_quadrant(float x, int offset) {
  double d = x;
  double t = fma(d, 0.63661977236758134, kRoundD);
  double k = t - kRoundD;
  double r = fma(-k, 6.07710050650619224932e-11, fma(-k, 1.57079632673412561417, d));
  int q = static_cast<int>(bits(t)) + offset;
  double s = r * r;
  double a = fma(fma(fma(2.7182371791669184e-06, s, -0.00019839327124251008), s, 0.00833332936223244), s,
                 -0.16666666641425962);
  a = fma(r * s, a, r);
  double b = fma(fma(fma(-2.7209546637287923e-07, s, 2.4799511747780403e-05), s, -0.0013888883722549003), s,
                 0.04166666662247592);
  b = fma(s * s, b, fma(s, -0.5, 1.0));
  float v = static_cast<float>((q & 1) != 0 ? b : a);
  return (q & 2) != 0 ? -v : v;
}
#if HOLON_DEVICE_TEXT
// Without a limit; branches cost little there, and float64 much.
HOLON_FN float sin(float x) { return __builtin_sinf(x); }
HOLON_FN float cos(float x) { return __builtin_cosf(x); }
#else
HOLON_FN float sin(float x) { return sin_quadrant(x, 0); }
HOLON_FN float cos(float x) { return sin_quadrant(x, 1); }
#endif

// 2^(y log2|x|) in float64, then the limits and the sign.
HOLON_FN float pow(float x, float y) {
  const float inf = __builtin_inff();
  double ax = f::abs(x);
  uint64_t b = bits(ax) - 0x3fe6a09e667f3bcdull;  // sqrt(1/2); float32's subnormal numbers are normal here
  double e = static_cast<double>(static_cast<int>(b >> 32) >> 20);
  double m = from_bits64((b & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
  double s = (m - 1.0) / (m + 1.0), t = s * s;
  double l = fma(
      s,
      fma(t,
          fma(t, fma(t, fma(t, fma(t, 0.2829553525106417, 0.319901948976369), 0.41220934100989504), 0.5770779415124139),
              0.9617966941162049),
          2.885390081777848),
      e);
  l = ax == 0.0 ? -1e300 : l;
  l = ax == static_cast<double>(inf) ? 1e300 : l;
  l = clamp(l * static_cast<double>(y), -1000.0, 1000.0);
  double w = l + kRoundD, r = l - (w - kRoundD);
  double p = 1.326429027896727e-06;
  p = fma(p, r, 1.5310311312083514e-05);
  p = fma(p, r, 0.00015403410559101873);
  p = fma(p, r, 0.0013333449695751144);
  p = fma(p, r, 0.009618129230120075);
  p = fma(p, r, 0.055504109421173474);
  p = fma(p, r, 0.24022650695459613);
  p = fma(p, r, 0.6931471805457047);
  p = fma(p, r, 1.0);
  float v = static_cast<float>(p * from_bits64((bits(w) - bits(kRoundD) + 1023) << 52));
  bool integer = f::floor(y) == y, odd = integer & (f::floor(y * 0.5f) * 2.f != y);
  v = (x < 0.f) & !integer & (x != -inf) ? __builtin_nanf("") : v;
  v = (bits(x) >> 31 != 0) & odd ? -v : v;
  v = (x != x) | (y != y) ? x + y : v;
  v = (f::abs(x) == 1.f) & (f::abs(y) == inf) ? 1.f : v;
  return (x == 1.f) | (y == 0.f) ? 1.f : v;
}

}  // namespace holon::kernels::HOLON_ISA::f

#include "holon/kernels/functors64.h"

namespace holon::kernels::HOLON_ISA::f {

// The C library, element by element.
#define HOLON_LIBM(name)                                          \
  HOLON_FN float name(float x) { return __builtin_##name##f(x); } \
  HOLON_FN double name(double x) { return __builtin_##name(x); }
HOLON_LIBM(tan)
HOLON_LIBM(asin)
HOLON_LIBM(acos)
HOLON_LIBM(atan)
HOLON_LIBM(sinh)
HOLON_LIBM(cosh)
HOLON_LIBM(asinh)
HOLON_LIBM(acosh)
HOLON_LIBM(atanh)
HOLON_LIBM(erfc)
#undef HOLON_LIBM
#define HOLON_LIBM(name) \
  HOLON_FN double name(double x) { return __builtin_##name(x); }
HOLON_LIBM(exp2)
HOLON_LIBM(log2)
HOLON_LIBM(log10)
HOLON_LIBM(sin)
HOLON_LIBM(cos)
HOLON_LIBM(erf)
#undef HOLON_LIBM
HOLON_FN float atan2(float x, float y) { return __builtin_atan2f(x, y); }
HOLON_FN double atan2(double x, double y) { return __builtin_atan2(x, y); }
HOLON_FN float hypot(float x, float y) { return __builtin_hypotf(x, y); }
HOLON_FN double hypot(double x, double y) { return __builtin_hypot(x, y); }
HOLON_FN double pow(double x, double y) { return __builtin_pow(x, y); }
HOLON_FN double exp_nonpositive(double x) { return exp(x); }
HOLON_FN double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
HOLON_FN double softplus(double x) { return (x < 0.0 ? 0.0 : x) + log1p(exp(-f::abs(x))); }
HOLON_FN double tanh_softplus(double x) { return tanh(softplus(x)); }
HOLON_FN double gelu(double x) { return 0.5 * x * __builtin_erfc(-x * 0.70710678118654752440); }
HOLON_FN double normal_cdf(double x) { return 0.5 * __builtin_erfc(-x * 0.70710678118654752440); }
HOLON_FN double gelu_slope(double x) { return normal_cdf(x) + x * exp(-0.5 * x * x) * 0.39894228040143267794; }
HOLON_FN double gelu_and_slope(double x, double* slope) {
  double p = normal_cdf(x);
  *slope = p + x * exp(-0.5 * x * x) * 0.39894228040143267794;
  return x * p;
}

// GELU by tanh is x sigmoid(this).
template <class T>
HOLON_FN T gelu_tanh_inner(T x) {
  return T(1.5957691216057308) * fma(T(0.044715) * x * x, x, x);
}
template <class T>
HOLON_FN T gelu_tanh_slope(T x) {
  T s = sigmoid(gelu_tanh_inner(x));
  return s + x * s * (T(1) - s) * T(1.5957691216057308) * (T(1) + T(3 * 0.044715) * x * x);
}
template <class T>
HOLON_FN T gelu_tanh_and_slope(T x, T* slope) {
  T s = sigmoid(gelu_tanh_inner(x));
  *slope = s + x * s * (T(1) - s) * T(1.5957691216057308) * (T(1) + T(3 * 0.044715) * x * x);
  return x * s;
}
template <class T>
HOLON_FN T silu_slope(T x) {
  T s = sigmoid(x);
  return s * fma(x, T(1) - s, T(1));
}
template <class T>
HOLON_FN T mish_slope(T x) {
  T t = tanh_softplus(x);
  return t + x * sigmoid(x) * (T(1) - t * t);
}
template <class T>
HOLON_FN T smooth_l1(T d, T beta) {
  T a = f::abs(d);
  return a < beta ? T(0.5) * d * d / beta : a - T(0.5) * beta;
}
template <class T>
HOLON_FN T huber(T d, T delta) {
  T a = f::abs(d);
  return a <= delta ? T(0.5) * d * d : delta * (a - T(0.5) * delta);
}

template <class T>
HOLON_FN T at_least(T x, T low) {
  return x < low ? low : x;
}
// log(e^x + e^y)
template <class T>
HOLON_FN T log_add_exp(T x, T y) {
  T high = (x > y) | (x != x) ? x : y, low = (x > y) | (x != x) ? y : x;
  // Equal infinities have no difference.
  return high == low ? high + T(0.69314718055994531) : high + softplus(low - high);
}
// The logarithms are held at -100, so that a wrong certainty costs much and not infinitely much.
template <class T>
HOLON_FN T binary_cross_entropy(T x, T y) {
  return -(y * at_least(log(x), T(-100)) + (T(1) - y) * at_least(log1p(-x), T(-100)));
}

// The inverse of erf: a guess good to 0.2 %, and two of Halley's steps, which each treble the number of right digits.
// Beyond 1/2 the difference is taken in erfc, where it does not cancel.
HOLON_FN double erfinv(double y) {
  double a = f::abs(y);
  if (!(a < 1.0)) return a == 1.0 ? y * __builtin_inf() : __builtin_nan("");
  double tail = 1.0 - a;
  double l = __builtin_log(tail * (1.0 + a)), u = 4.3307467508 + 0.5 * l;
  double v = -l * 6.8027210884, w = __builtin_sqrt(u * u + v);
  double x = __builtin_sqrt(u > 0.0 ? v / (w + u) : w - u);
  for (int i = 0; i < 3; ++i) {
    double e = a > 0.5 ? tail - __builtin_erfc(x) : __builtin_erf(x) - a;
    double step = e / (1.1283791670955126 * __builtin_exp(-x * x));
    x -= step / (1.0 + x * step);
  }
  return y < 0.0 ? -x : x;
}
HOLON_FN float erfinv(float y) { return static_cast<float>(erfinv(static_cast<double>(y))); }

// Shifts by the width of T or more (or by less than 0) push all bits out.
template <class T>
HOLON_FN T shift_left(T x, T by) {
  constexpr T width = sizeof(T) * 8;
  T v = static_cast<T>(static_cast<uint64_t>(x) << (by & (width - 1)));
  return (by < 0) | (by >= width) ? T(0) : v;
}
template <class T>
HOLON_FN T shift_right(T x, T by) {
  constexpr T width = sizeof(T) * 8;
  return static_cast<T>(x >> ((by < 0) | (by >= width) ? width - 1 : by));
}

// Division. Integers: y != 0; the smallest number by -1 wraps around.
template <class T>
HOLON_FN T div(T x, T y) {
  if constexpr (IsFloat<T>::value)
    return x / y;
  else
    return y == T(-1) ? static_cast<T>(0 - x) : static_cast<T>(x / y);
}
HOLON_FN float fmod_(float x, float y) { return __builtin_fmodf(x, y); }
HOLON_FN double fmod_(double x, double y) { return __builtin_fmod(x, y); }
template <class T>
HOLON_FN T fmod(T x, T y) {
  if constexpr (IsFloat<T>::value)
    return fmod_(x, y);
  else
    return y == T(-1) ? T(0) : static_cast<T>(x % y);
}
template <class T>
HOLON_FN T remainder(T x, T y) {
  T r = fmod(x, y);
  return (r != T(0)) & ((r < T(0)) != (y < T(0))) ? r + y : r;
}
template <class T>
HOLON_FN T floor_divide(T x, T y) {
  if constexpr (IsFloat<T>::value) {
    if (y == T(0)) return x / y;
    T r = fmod_(x, y);
    T q = (x - r) / y;
    if ((r != T(0)) & ((r < T(0)) != (y < T(0)))) q -= T(1);
    // q is an integer except for rounding.
    T n = floor(q);
    return q - n > T(0.5) ? n + T(1) : n;
  } else {
    T q = div(x, y);
    return (q * y != x) & ((x < T(0)) != (y < T(0))) ? q - T(1) : q;
  }
}

template <class T>
HOLON_FN T int_pow(T x, T n) {
  if (n < 0) return x == 1 ? T(1) : x == T(-1) ? ((n & 1) != 0 ? T(-1) : T(1)) : T(0);
  T v = 1;
  for (; n != 0; n >>= 1) {
    if ((n & 1) != 0) v *= x;
    x *= x;
  }
  return v;
}
HOLON_FN int32_t pow(int32_t x, int32_t n) { return int_pow(x, n); }
HOLON_FN int64_t pow(int64_t x, int64_t n) { return int_pow(x, n); }

}  // namespace holon::kernels::HOLON_ISA::f
