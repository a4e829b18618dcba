// Products together with what follows them, which is done while a block of the product is in the cache. Results are
// those of the kernels one after the other, except for the order of a product's sums.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

enum class Then : uint8_t {
  kRelu,
  kGelu,
  kGeluTanh,
  kAdd,           // plus other
  kMul,           // times other
  kReluBackward,  // 0 where other, relu's result, is 0
};

// out = then(x[..., k] @ w[n, k]^T + bias[n], other). bias may be nullptr; other has out's shape, and is nullptr where
// `then` needs none. All arrays have one floating dtype and any strides; out overlaps no operand but other, which it
// may be.
void linear_then(const Array& x, const Array& w, const Array* bias, Then then, const Array* other, Array& out);

// out[..., m, n] = then(a[..., m, k] @ b[k, n], other), likewise.
void matmul_then(const Array& a, const Array& b, Then then, const Array* other, Array& out);

// y = gelu(x @ w^T + bias) and the slope of gelu there: what backward needs, for little more than gelu alone.
void linear_gelu(const Array& x, const Array& w, const Array* bias, bool by_tanh, Array& y, Array& slope);

}  // namespace holon::kernels
