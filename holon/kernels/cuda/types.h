// Elements in device code: how they are stored, what they are computed in, several at a time.
#pragma once

#include "holon/array/dtype.h"

#ifdef HOLON_EMULATED
#include "emulator.h"
#else
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

// From one dtype to another, as on the CPU: float16 and bfloat16 by way of float32, to bool by comparison with 0.
template <class D, class S>
__device__ __forceinline__ D convert(S x) {
  if constexpr (std::is_same_v<D, S>)
    return x;
  else if constexpr (std::is_same_v<D, bool>)
    return widen(x) != Compute<S>(0);
  else
    return narrow<D>(static_cast<Compute<D>>(widen(x)));
}

template <class... T>
struct TypeList {};
template <class A, class B>
struct Joined;
template <class... A, class... B>
struct Joined<TypeList<A...>, TypeList<B...>> {
  using type = TypeList<A..., B...>;
};
template <class A, class B>
using Join = typename Joined<A, B>::type;

// f(TypeTag<T>) with that of the types whose dtype it is. Pre: it is one of them. The last one is not asked for, so
// that there is no way past f, on which its results would be undefined and take registers.
template <class T, class... More, class F>
__device__ __forceinline__ void with_type_of(TypeList<T, More...>, DType dtype, F&& f) {
  if constexpr (sizeof...(More) == 0) {
    f(TypeTag<T>{});
  } else {
    if (dtype == DTypeOf<T>::value)
      f(TypeTag<T>{});
    else
      with_type_of(TypeList<More...>{}, dtype, static_cast<F&&>(f));
  }
}

// The types of elements that are computed in C.
template <class C>
struct StoredTypesOf {
  using type = TypeList<C>;
};
template <>
struct StoredTypesOf<float> {
  using type = TypeList<float, BFloat16, Float16>;
};
template <>
struct StoredTypesOf<int32_t> {
  using type = TypeList<int32_t, uint8_t, int8_t, bool>;
};
template <class C>
using StoredTypes = typename StoredTypesOf<C>::type;
using FloatTypes = Join<StoredTypes<float>, TypeList<double>>;
using IntTypes = Join<StoredTypes<int32_t>, TypeList<int64_t>>;
using AllTypes = Join<FloatTypes, IntTypes>;

template <class C, class F>
__device__ __forceinline__ void with_stored(DType stored, F&& f) {
  with_type_of(StoredTypes<C>{}, stored, static_cast<F&&>(f));
}
// With any dtype.
template <class F>
__device__ __forceinline__ void with_dtype(DType dtype, F&& f) {
  with_type_of(AllTypes{}, dtype, static_cast<F&&>(f));
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
