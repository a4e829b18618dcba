// Scans along one axis, in addition to cumsum and cumprod (reduce.h), and the backward ones of them that divide by
// nothing. Arrays may have any strides; all of a call have one shape and, except indices, one floating point dtype.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// out[i] = log(exp(x[0]) + ... + exp(x[i])) without overflow.
void logcumsumexp(const Array& x, int axis, Array& out);
// dx of it: x and y are its input and output.
void logcumsumexp_backward(const Array& dy, const Array& x, const Array& y, int axis, Array& out);
// dx of cumprod, for elements that may be 0.
void cumprod_backward(const Array& dy, const Array& x, int axis, Array& out);
// values[i] = the largest (smallest) of x[0] ... x[i], indices[i] (int64) where it was last seen; a NaN stays. Any
// dtype.
void cumextremum(bool max, const Array& x, int axis, Array& values, Array& indices);

// out = x with its elements along the axes of the mask in the opposite order. Any dtype.
void flip(const Array& x, uint32_t axes, Array& out);

}  // namespace holon::kernels
