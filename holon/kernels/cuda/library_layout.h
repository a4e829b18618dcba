// Arrays as libraries take them: at addresses that vectors of elements may have.
#pragma once

#include <cstdint>

#include "holon/kernels/copy.h"

namespace holon::kernels::cuda {

inline bool is_aligned(const Array& a) { return reinterpret_cast<uintptr_t>(a.bytes()) % 16 == 0; }

inline Array copy_of(const Array& a, const Dims& strides) {
  Array y = Array::empty_strided(a.shape, strides, a.dtype, a.device);
  copy(a, y);
  return y;
}

// f(out) where `fits`, or f of an array of those strides that is then copied to it. Returns what f does: false, nothing
// is copied.
template <class F>
bool into_layout(Array& out, bool fits, const Dims& strides, F&& f) {
  if (fits) return f(out);
  Array y = Array::empty_strided(out.shape, strides, out.dtype, out.device);
  if (!f(y)) return false;
  copy(y, out);
  return true;
}

}  // namespace holon::kernels::cuda
