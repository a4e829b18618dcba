// Gradients of normalisations as ops, which have gradients themselves: what backward() computes while it is recorded
// (create_graph), in place of the kernels.
#pragma once

#include "holon/array/dims.h"
#include "holon/tensor/tensor.h"

namespace holon::ops {

struct NormGradients {
  Tensor dx, normalised;  // of x's shape, in float32 where x has two bytes
};

// Of y = (x - mean) rstd over the axes, without the mean if not centred. dy: y's gradient, weight included. rstd: the
// value that the forward pass had, with axes of size 1; what it added to the variance (eps) follows from it.
NormGradients norm_gradients(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Dims& axes, bool centred);

// The dtype that norm_gradients computes in.
Tensor in_norm_dtype(const Tensor& t);

}  // namespace holon::ops
