// Elements in device code: how they are stored, what they are computed in, several at a time. Compiled at run time, too
// (chain_device.h): includes nothing but what is given there.
#pragma once

#ifdef __CUDACC_RTC__
#include <cstdint>
namespace holon {
struct Float16 {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
}  // namespace holon
#else
#include "holon/array/dtype.h"
#ifdef HOLON_EMULATED
#include "emulator.h"
#endif
#endif

namespace holon::kernels::cuda {

template <class A, class B>
inline constexpr bool kSameType = false;
template <class A>
inline constexpr bool kSameType<A, A> = true;

// float32 for the two-byte floats, int32 for the one-byte integers and bools (as on the CPU: elementwise_ops.h).
template <class T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<Float16> {
  using type = float;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <>
struct ComputeOf<bool> {
  using type = int32_t;
};
template <>
struct ComputeOf<uint8_t> {
  using type = int32_t;
};
template <>
struct ComputeOf<int8_t> {
  using type = int32_t;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

// A stored element as a number, and back; float16 and bfloat16 are rounded to nearest even.
template <class T>
__device__ __forceinline__ Compute<T> widen(T x) {
  return static_cast<Compute<T>>(x);
}
template <class T, class C>
__device__ __forceinline__ T narrow(C x) {
  return static_cast<T>(x);
}
#ifdef HOLON_EMULATED
template <>
inline float widen(Float16 x) {
  return x;
}
template <>
inline float widen(BFloat16 x) {
  return x;
}
template <class T, class C>
requires(kSameType<T, Float16> || kSameType<T, BFloat16>) inline T narrow(C x) { return T(static_cast<float>(x)); }
#else
template <>
__device__ __forceinline__ float widen(Float16 x) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(x.bits));
  return v;
}
template <>
__device__ __forceinline__ float widen(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
template <class T, class C>
requires kSameType<T, Float16> __device__ __forceinline__ T narrow(C x) {
  T v;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v.bits) : "f"(static_cast<float>(x)));
  return v;
}
template <class T, class C>
requires kSameType<T, BFloat16> __device__ __forceinline__ T narrow(C x) {
  T v;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v.bits) : "f"(static_cast<float>(x)));
  return v;
}
#endif

// From one dtype to another, as on the CPU: float16 and bfloat16 by way of float32, to bool by comparison with 0.
template <class D, class S>
__device__ __forceinline__ D convert(S x) {
  if constexpr (kSameType<D, S>)
    return x;
  else if constexpr (kSameType<D, bool>)
    return widen(x) != Compute<S>(0);
  else
    return narrow<D>(static_cast<Compute<D>>(widen(x)));
}

// N elements that are loaded and stored as one. Addresses must be multiples of its size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
// As many elements as 16 bytes hold.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

}  // namespace holon::kernels::cuda
