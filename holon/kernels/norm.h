// Normalisation of rows: layer norm and RMS norm, with gradients. A row is the last `axes` axes of x together.
//
// x, y, dy and dx have one floating dtype, one shape and any strides; y may be x, and dx may be dy. weight, bias,
// dweight and dbias have the shape of a row and any floating dtype; they may be undefined arrays. mean and rstd have
// one element for each row (any shape) in float32 (float64 for float64 inputs), contiguous where they are made.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// y = (x - mean) rstd weight + bias with rstd = 1 / sqrt(variance + eps).
void layer_norm(const Array& x, int axes, const Array& weight, const Array& bias, double eps, Array& y, Array& mean,
                Array& rstd);
// dweight and dbias are the sums over the rows; undefined ones are not computed.
void layer_norm_backward(const Array& dy, const Array& x, int axes, const Array& weight, const Array& mean,
                         const Array& rstd, Array& dx, Array* dweight, Array* dbias);

// The same of x + other, in one pass over memory: sum = x + other and its norm y. x, other and y may be of other
// floating dtypes than sum; float64 goes with a sum in float64 only. sum may be x or other, and y the other one.
void add_layer_norm(const Array& x, const Array& other, int axes, const Array& weight, const Array& bias, double eps,
                    Array& sum, Array& y, Array& mean, Array& rstd);
// dx = the gradient of layer_norm in x, plus other. dy and other may be of other floating dtypes than x, as above; dx
// may be dy or other.
void layer_norm_backward_add(const Array& dy, const Array& x, int axes, const Array& weight, const Array& mean,
                             const Array& rstd, const Array& other, Array& dx, Array* dweight, Array* dbias);

// y = x rstd weight with rstd = 1 / sqrt(mean of squares + eps).
void rms_norm(const Array& x, int axes, const Array& weight, double eps, Array& y, Array& rstd);
void rms_norm_backward(const Array& dy, const Array& x, int axes, const Array& weight, const Array& rstd, Array& dx,
                       Array* dweight);
void add_rms_norm(const Array& x, const Array& other, int axes, const Array& weight, double eps, Array& sum, Array& y,
                  Array& rstd);
void rms_norm_backward_add(const Array& dy, const Array& x, int axes, const Array& weight, const Array& rstd,
                           const Array& other, Array& dx, Array* dweight);

}  // namespace holon::kernels
