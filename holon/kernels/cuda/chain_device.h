// What the kernels of chains are written with (chain_source.h): compiled when they are, by the compiler that the
// program finds when it runs. It includes only what is given to that one (HOLON_CHAIN_HEADERS in CMakeLists.txt).
#pragma once

#include <cstdint>

#ifdef __CUDACC_RTC__
// It knows the functions of the C library, not the host compiler's names for them.
#define __builtin_fabsf ::fabsf
#define __builtin_fabs ::fabs
#define __builtin_sqrtf ::sqrtf
#define __builtin_sqrt ::sqrt
#define __builtin_floorf ::floorf
#define __builtin_floor ::floor
#define __builtin_ceilf ::ceilf
#define __builtin_ceil ::ceil
#define __builtin_rintf ::rintf
#define __builtin_rint ::rint
#define __builtin_truncf ::truncf
#define __builtin_trunc ::trunc
#define __builtin_sinf ::sinf
#define __builtin_sin ::sin
#define __builtin_cosf ::cosf
#define __builtin_cos ::cos
#define __builtin_tanf ::tanf
#define __builtin_tan ::tan
#define __builtin_asinf ::asinf
#define __builtin_asin ::asin
#define __builtin_acosf ::acosf
#define __builtin_acos ::acos
#define __builtin_atanf ::atanf
#define __builtin_atan ::atan
#define __builtin_atan2f ::atan2f
#define __builtin_atan2 ::atan2
#define __builtin_sinhf ::sinhf
#define __builtin_sinh ::sinh
#define __builtin_coshf ::coshf
#define __builtin_cosh ::cosh
#define __builtin_asinhf ::asinhf
#define __builtin_asinh ::asinh
#define __builtin_acoshf ::acoshf
#define __builtin_acosh ::acosh
#define __builtin_atanhf ::atanhf
#define __builtin_atanh ::atanh
#define __builtin_erf ::erf
#define __builtin_erfcf ::erfcf
#define __builtin_erfc ::erfc
#define __builtin_exp ::exp
#define __builtin_exp2 ::exp2
#define __builtin_log ::log
#define __builtin_log2 ::log2
#define __builtin_log10 ::log10
#define __builtin_pow ::pow
#define __builtin_hypotf ::hypotf
#define __builtin_hypot ::hypot
#define __builtin_fmodf ::fmodf
#define __builtin_fmod ::fmod
#define __builtin_inff() __int_as_float(0x7f800000)
#define __builtin_inf() __longlong_as_double(0x7ff0000000000000ll)
#define __builtin_nanf(text) __int_as_float(0x7fc00000)
#define __builtin_nan(text) __longlong_as_double(0x7ff8000000000000ll)
#endif

#include "holon/kernels/cuda/divider.h"
#include "holon/kernels/cuda/elements.h"
#include "holon/kernels/cuda/faults.h"
#include "holon/kernels/elementwise_functors.h"

namespace holon::kernels::cuda {

namespace ops = HOLON_ISA::ops;
namespace f = HOLON_ISA::f;

// An integer as the next step sees it. It may have wrapped around, and when all steps are compiled together nothing may
// be concluded from where it came.
template <class T>
__device__ __forceinline__ T opaque(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (kSameType<T, int32_t>) asm("" : "+r"(x));
  if constexpr (kSameType<T, int64_t>) asm("" : "+l"(x));
#endif
  return x;
}

// An element-wise operation on elements that are stored as S, with the result as its own kernel would store it. x, y, z
// and the parameters are of the type that S is computed in.
template <class Op, class S>
struct Step {
  using C = Compute<S>;
  template <class Out>
  static __device__ __forceinline__ auto stored(Out v) {
    if constexpr (kSameType<Out, C>)
      return opaque(narrow<S>(v));
    else
      return narrow<bool>(v);
  }
  static __device__ __forceinline__ auto unary(C x, C p0 = 0, C p1 = 0, C p2 = 0) {
    return stored(Op::template apply<C>(x, p0, p1, p2));
  }
  static __device__ __forceinline__ auto binary(C x, C y, C p0 = 0, C p1 = 0) {
    return stored(Op::template apply<C>(x, y, p0, p1));
  }
  // Division of integers: one by 0 is noted.
  static __device__ __forceinline__ auto quotient(C x, C y, FaultReport* faults, const char* op) {
    return binary(x, divisor(y, faults, op));
  }
  static __device__ __forceinline__ auto ternary(C x, C y, C z, C p0 = 0) {
    return stored(Op::template apply<C>(x, y, z, p0));
  }
};

template <class M, class S>
__device__ __forceinline__ S select(M condition, S a, S b) {
  return condition != 0 ? a : b;
}

// A number among the kernel's arguments.
template <class T>
__device__ __forceinline__ T number(uint64_t bits) {
  if constexpr (kSameType<T, bool>)
    return (bits & 0xff) != 0;
  else if constexpr (sizeof(T) == 1)
    return static_cast<T>(static_cast<uint8_t>(bits));
  else if constexpr (sizeof(T) == 2)
    return __builtin_bit_cast(T, static_cast<uint16_t>(bits));
  else if constexpr (sizeof(T) == 4)
    return __builtin_bit_cast(T, static_cast<uint32_t>(bits));
  else
    return __builtin_bit_cast(T, bits);
}

// Neighbours of one array in registers.
template <class S, int kN>
struct Row {
  S v[kN];
};
// How many of kN are moved at once: 16 bytes at most.
template <class S, int kN>
inline constexpr int kMoved = kN* static_cast<int>(sizeof(S)) > 16 ? 16 / static_cast<int>(sizeof(S)) : kN;

template <int kN, class S>
__device__ __forceinline__ Row<S, kN> load(const S* from) {
  constexpr int n = kMoved<S, kN>;
  Row<S, kN> row;
#pragma unroll
  for (int i = 0; i < kN / n; ++i) {
    const auto moved = reinterpret_cast<const Pack<S, n>*>(from)[i];
#pragma unroll
    for (int j = 0; j < n; ++j) row.v[i * n + j] = moved.v[j];
  }
  return row;
}
template <int kN, class S, class I>
__device__ __forceinline__ Row<S, kN> load_strided(const S* from, I stride) {
  Row<S, kN> row;
#pragma unroll
  for (int j = 0; j < kN; ++j) row.v[j] = from[j * stride];
  return row;
}
template <class S, int kN>
__device__ __forceinline__ void store(S* to, const Row<S, kN>& row) {
  constexpr int n = kMoved<S, kN>;
#pragma unroll
  for (int i = 0; i < kN / n; ++i) {
    Pack<S, n> moved;
#pragma unroll
    for (int j = 0; j < n; ++j) moved.v[j] = row.v[i * n + j];
    reinterpret_cast<Pack<S, n>*>(to)[i] = moved;
  }
}

}  // namespace holon::kernels::cuda
