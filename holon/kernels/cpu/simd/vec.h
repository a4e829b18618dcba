// A vector register of the instruction set that is compiled for, as GCC's and Clang's vector type.
#pragma once

#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(kVecBytes)));
  static constexpr int width = kVecBytes / static_cast<int>(sizeof(T));
};
template <class T>
using Vec = typename VecOf<T>::type;

template <class T>
HOLON_FN Vec<T> load_vec(const T* p) {
  Vec<T> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
HOLON_FN Vec<T> same(T x) {
  return x - Vec<T>{};
}

// The lanes put together by halves: f(a, b) of vectors and of elements.
template <class T, class V, class F>
HOLON_FN T fold_lanes(V v, F f) {
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

}  // namespace holon::kernels::HOLON_ISA
