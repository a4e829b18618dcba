// What an autocast region of a float8 dtype scales the factors of products by, where not by their own largest values.
#pragma once

#include <array>
#include <cstdint>

#include "holon/tensor/tensor.h"

namespace holon {

enum class Float8Role : uint8_t { kInput, kWeight, kGradient };
inline constexpr size_t kFloat8Roles = 3;

// Of the products by one parameter, for each role: what the other factor, the parameter and the gradients of results
// are multiplied by, and the largest magnitudes that they have had. Both are float32.
struct Float8Scales {
  std::array<Tensor, kFloat8Roles> scale;  // without axes; broadcast
  // Ops write into it: one element for each rank, along which the placement's axes are split with S(0); [1] of a local
  // parameter.
  std::array<Tensor, kFloat8Roles> amax;
  Tensor& scale_of(Float8Role r) { return scale[static_cast<size_t>(r)]; }
  Tensor& amax_of(Float8Role r) { return amax[static_cast<size_t>(r)]; }
};

// Regions share it, and keep it alive.
class Float8Recipe {
 public:
  virtual ~Float8Recipe() = default;
  // Of products by this parameter, whose factors are rounded to the dtype; nullptr where the recipe does not have it:
  // then factors are scaled by their own values. The tensors stay what they are as long as the recipe and the
  // parameter's placement do.
  virtual Float8Scales* scales_of(const Tensor& parameter, DType dtype) = 0;
  // A step has ended.
  virtual void update() = 0;
};

}  // namespace holon
