// A number on the left of a tensor: 1 - x, 2 / x. (The tensor on the left: holon/tensor/tensor.h.)
#pragma once

#include "holon/ops/arithmetic.h"

namespace holon {

inline Tensor operator+(Scalar s, const Tensor& x) { return x + s; }
inline Tensor operator-(Scalar s, const Tensor& x) { return sub_scalar(x, s, {.reverse = true}); }
inline Tensor operator*(Scalar s, const Tensor& x) { return x * s; }
inline Tensor operator/(Scalar s, const Tensor& x) { return div_scalar(x, s, {.reverse = true}); }

}  // namespace holon
