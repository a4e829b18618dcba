// A number on the left of a tensor: 1 - x, 0 < x. (The tensor on the left: holon/tensor/tensor.h.)
#pragma once

#include "holon/tensor/tensor.h"

namespace holon {

// The number is converted as by the op of two tensors; comparisons make a tensor of bool.
Tensor operator+(Scalar s, const Tensor& x);
Tensor operator-(Scalar s, const Tensor& x);
Tensor operator*(Scalar s, const Tensor& x);
Tensor operator/(Scalar s, const Tensor& x);
Tensor operator==(Scalar s, const Tensor& x);
Tensor operator!=(Scalar s, const Tensor& x);
Tensor operator<(Scalar s, const Tensor& x);
Tensor operator<=(Scalar s, const Tensor& x);
Tensor operator>(Scalar s, const Tensor& x);
Tensor operator>=(Scalar s, const Tensor& x);

}  // namespace holon
