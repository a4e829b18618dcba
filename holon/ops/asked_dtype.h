// dtype= of sums and products: elements are converted before they are added up or multiplied.
#pragma once

#include "holon/kernels/copy.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

// Input 0 in the dtype that the call asks for. Whole numbers are added up as int64 without that.
inline Array in_asked_dtype(const KernelCall& c) {
  const Array& x = c.in(0);
  const DType to = c.out().dtype;
  if (!c.has("dtype"_attr) || x.dtype == to || (to == int64 && !is_floating(x.dtype))) return x;
  Array converted = Array::empty(x.shape, to, x.device);
  kernels::copy(x, converted);
  return converted;
}

}  // namespace holon::ops
