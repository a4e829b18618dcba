// Products in an autocast region of a float8 dtype: their factors are rounded to it, or, on devices that multiply such
// numbers, quantised.
#pragma once

#include <cstdint>

#include "holon/dispatch/autocast.h"
#include "holon/registry/op_def.h"

namespace holon {

// The state of a recipe for a call's factors, and which of them is the parameter; nullptr: there is none.
struct RecipeScales {
  Float8Scales* scales = nullptr;
  size_t weight = 1;
};
RecipeScales recipe_scales(const AutocastMode& mode, const TensorVec& given);

// inputs: as the op gets them, in a two-byte float. Rounds its factors.
void round_factors(const OpDef& op, const AutocastMode& mode, const RecipeScales& recipe, TensorVec& inputs);

// The result of linear or matmul on a device that multiplies float8, with its gradients; undefined where the call is
// left to rounding: with blocks, matrices in a batch, or axes that ranks divide and that cannot be joined.
Tensor scaled_product(const OpDef& op, const AutocastMode& mode, const RecipeScales& recipe, const TensorVec& inputs);

}  // namespace holon
