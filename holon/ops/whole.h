// For ops whose result has a shape that the values decide (nonzero, unique, ...): every rank takes the whole logical
// value, finds the same result, and holds it as broadcast. The ranks need no further word to agree on the shape.
#pragma once

#include "holon/tensor/tensor.h"

namespace holon::ops {

// values, alike on all ranks, as a tensor like x: local where x is, else broadcast on its placement.
Tensor beside(const Tensor& x, const Array& values);

// One number as a tensor without axes like x, in its dtype.
Tensor number_beside(const Tensor& x, const Scalar& value);

// t like x: a local t is taken to be alike on all ranks; a global one is brought to x's placement, or to local.
// Collective where t is global and is elsewhere.
Tensor bring_beside(const Tensor& x, const Tensor& t);

// The indices of the elements that are not 0, one int64 tensor [n] for each axis of x. Collective for a global tensor.
std::vector<Tensor> nonzero_columns(const Tensor& x);

}  // namespace holon::ops
