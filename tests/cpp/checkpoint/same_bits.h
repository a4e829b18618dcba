// Whether two tensors, local or global, have the same values.
#pragma once

#include <cstring>

#include "holon/ops/shape.h"
#include "holon/tensor/tensor.h"

namespace holon::checkpoint {

// dtype, shape and bits. Collective where one is global.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = contiguous(a.is_global() ? a.full() : a), y = contiguous(b.is_global() ? b.full() : b);
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
      (x.numel() == 0 || std::memcmp(x.array().bytes(), y.array().bytes(), x.array().nbytes()) == 0);
}

}  // namespace holon::checkpoint
