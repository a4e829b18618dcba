// From the number of an element to its place in several strided arrays of one shape. The arithmetic is the host's as
// much as the device's, and tested there.
#pragma once

#include <span>

#include "holon/array/array.h"
#include "holon/kernels/cuda/divider.h"

#ifdef __CUDACC__
// Loops of few rounds that would only cost registers.
#define HOLON_NO_UNROLL _Pragma("unroll 1")
#else
#define HOLON_NO_UNROLL
#endif

namespace holon::kernels::cuda {

// Axes from the last to the first, without those of size 1 and with neighbours joined where all arrays allow it.
template <int kArrays>
struct Strided {
  int axes = 0;
  bool small = true;  // fewer than 2^31 elements: divisions are products
  int64_t count = 1;
  Divider divider[kMaxAxes];
  int64_t size[kMaxAxes];
  int64_t stride[kMaxAxes][kArrays];  // in elements; 0 where an array is repeated

  Strided() = default;
  // strides[k]: of array k, as long as shape.
  Strided(const Dims& shape, const Dims (&strides)[kArrays]) {
    count = shape.numel();
    small = count < (int64_t{1} << 31);
    for (int i = shape.size() - 1; i >= 0; --i) {
      if (shape[i] == 1) continue;
      bool joins = axes > 0;
      for (int k = 0; k < kArrays && joins; ++k) joins = strides[k][i] == stride[axes - 1][k] * size[axes - 1];
      if (joins) {
        size[axes - 1] *= shape[i];
        continue;
      }
      size[axes] = shape[i];
      for (int k = 0; k < kArrays; ++k) stride[axes][k] = strides[k][i];
      ++axes;
    }
    if (small && count > 0)
      for (int a = 0; a < axes; ++a) divider[a] = Divider(static_cast<uint32_t>(size[a]));
  }
  // All arrays are one row of neighbours.
  bool contiguous() const {
    if (axes > 1) return false;
    for (int k = 0; k < kArrays && axes == 1; ++k)
      if (stride[0][k] != 1) return false;
    return true;
  }

  struct At {
    int64_t v[kArrays];
  };
  HOLON_BOTH At at(int64_t i) const {
    At p;
    for (int k = 0; k < kArrays; ++k) p.v[k] = 0;
    if (small) {
      auto n = static_cast<uint32_t>(i);
      HOLON_NO_UNROLL
      for (int a = 0; a < axes; ++a) {
        const uint32_t q = divider[a].quotient(n);
        const uint32_t r = n - q * divider[a].d;
        for (int k = 0; k < kArrays; ++k) p.v[k] += static_cast<int64_t>(r) * stride[a][k];
        n = q;
      }
    } else {
      HOLON_NO_UNROLL
      for (int a = 0; a < axes; ++a) {
        const int64_t q = i / size[a], r = i - q * size[a];
        for (int k = 0; k < kArrays; ++k) p.v[k] += r * stride[a][k];
        i = q;
      }
    }
    return p;
  }
};

// An array's strides as an operand that is broadcast to the shape, aligned at the right: 0 along what is repeated.
inline Dims broadcast_strides(const Array& a, const Dims& shape) {
  Dims s = Dims::filled(shape.size(), 0);
  const int lead = shape.size() - a.ndim();
  for (int i = 0; i < a.ndim(); ++i)
    if (a.shape[i] != 1) s[lead + i] = a.strides[i];
  return s;
}

}  // namespace holon::kernels::cuda
