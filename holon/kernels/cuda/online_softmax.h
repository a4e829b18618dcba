// The largest element and the sum of exponentials of a row in one pass, after Milakov and Gimelshein, "Online
// normalizer calculation for softmax" (2018).
#pragma once

#include <limits>

#include "holon/kernels/cuda/rows.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::cuda {

namespace f = HOLON_ISA::f;

// sum = the sum of exp(scale (x - max)); no elements: -inf and 0. A NaN is not a maximum; it makes the sum NaN.
template <class C>
struct OnlineSum {
  C max, sum;
  int32_t has_nan, unused;

  __device__ __forceinline__ static OnlineSum empty() { return {lowest<C>(), C(0), 0, 0}; }

  // Elements of -inf count as nothing.
  template <int kN>
  __device__ __forceinline__ void take(const C (&v)[kN], C scale) {
    C m = max;
#pragma unroll
    for (int e = 0; e < kN; ++e) m = MaxNumber()(m, v[e]);
    const C base = m == lowest<C>() ? C(0) : m;
    C s = 0;
#pragma unroll
    for (int e = 0; e < kN; ++e) {
      s += f::exp_nonpositive((v[e] - base) * scale);
      has_nan |= v[e] != v[e];
    }
    sum = (m == max ? sum : max == lowest<C>() ? sum : sum * f::exp_nonpositive((max - m) * scale)) + s;
    max = m;
  }
  struct Merge {
    C scale;
    __device__ __forceinline__ OnlineSum operator()(const OnlineSum& a, const OnlineSum& b) const {
      const C m = MaxNumber()(a.max, b.max);
      return {m, part(a, m) + part(b, m), a.has_nan | b.has_nan, 0};
    }
    __device__ __forceinline__ C part(const OnlineSum& a, C m) const {
      return a.max == m || a.max == lowest<C>() ? a.sum : a.sum * f::exp_nonpositive((a.max - m) * scale);
    }
  };
  // log(sum(exp(x))) for a scale of 1; of infinite elements their own.
  __device__ __forceinline__ C log() const {
    if (has_nan) return std::numeric_limits<C>::quiet_NaN();
    if (f::is_inf(max)) return max;
    return max + f::log(sum);
  }
};

}  // namespace holon::kernels::cuda
