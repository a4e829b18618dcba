// How layers make and draw their parameters.
#pragma once

#include "holon/nn/module.h"

namespace holon::nn {

// A tensor without values yet; local without a placement.
Tensor blank(const Dims& shape, const Placement& placement, const NdSbp& sbp, DType dtype);

// The sbp of a vector with one value for each index of an axis of a weight: S(0) where the weight is split along that
// axis, elsewhere B. axis -1: of no one axis.
NdSbp beside(const NdSbp& weight, int axis = 0);

// Draws weight [out, in, window...] and bias within 1 / sqrt(fan in), as PyTorch does.
void draw_weight_and_bias(const Tensor& weight, const Tensor& bias);

// One number for all n axes, or one for each. Errors: any other count.
Dims sizes_of(const Dims& given, int n, const char* layer, const char* what);

}  // namespace holon::nn
