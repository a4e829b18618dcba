// Dtypes in device code: what a value of DType says becomes a type.
#pragma once

#include <type_traits>

#include "holon/kernels/cuda/elements.h"

namespace holon::kernels::cuda {

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

// f(TypeTag<T>) with that of the types whose dtype it is. Pre: it is one of them. The last one is not tested, so
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

}  // namespace holon::kernels::cuda
