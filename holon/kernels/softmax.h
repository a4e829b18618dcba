// Softmax and log softmax along an axis, with gradients; and the masked, scaled softmax of attention scores.
//
// All arrays of a call have one floating dtype and one shape, and any strides; out may be the first input.
#pragma once

#include <optional>

#include "holon/array/array.h"

namespace holon::kernels {

void softmax(const Array& x, int axis, Array& out);
void log_softmax(const Array& x, int axis, Array& out);
// From the gradient of the result and the result.
void softmax_backward(const Array& dy, const Array& y, int axis, Array& dx);
void log_softmax_backward(const Array& dy, const Array& y, int axis, Array& dx);

// x [..., q, k] -> softmax(scale x) along k, where row i of q sees the columns up to i + diagonal and the others get 0;
// no diagonal: all of them. For causal attention diagonal is k - q, plus the number of the first row when the rows are
// a part of more. A row that sees nothing is 0. scale > 0.
void scale_mask_softmax(const Array& x, double scale, std::optional<int64_t> diagonal, Array& out);
void scale_mask_softmax_backward(const Array& dy, const Array& y, double scale, Array& dx);

// log(sum(exp(x))) along the last axis; out: the other axes, float32 (float64 for float64).
void log_sum_exp(const Array& x, Array& out);

}  // namespace holon::kernels
