// Elements in device code: how they are stored, what they are computed in, several at a time.
#pragma once

#include "holon/array/dtype.h"

#ifndef HOLON_EMULATED
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace holon::kernels::cuda {

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
requires(std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>) inline T narrow(C x) {
  return T(static_cast<float>(x));
}
#else
template <>
__device__ __forceinline__ float widen(Float16 x) {
  return __half2float(__ushort_as_half(x.bits));
}
template <>
__device__ __forceinline__ float widen(BFloat16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
template <class T, class C>
requires std::is_same_v<T, Float16> __device__ __forceinline__ T narrow(C x) {
  T v;
  v.bits = __half_as_ushort(__float2half_rn(static_cast<float>(x)));
  return v;
}
template <class T, class C>
requires std::is_same_v<T, BFloat16> __device__ __forceinline__ T narrow(C x) {
  T v;
  v.bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(x)));
  return v;
}
#endif

// N elements that are loaded and stored as one. Addresses must be multiples of its size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};
// As many elements as 16 bytes hold.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

}  // namespace holon::kernels::cuda
