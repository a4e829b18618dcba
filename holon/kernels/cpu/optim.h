// Optimizer steps in place, one pass over memory, for one tensor or a list.
//
// All arrays of a tensor have one shape and any strides; they are floating. The state's dtype may be wider than the
// parameter's. A float16 or bfloat16 parameter is updated in float32 and rounded.
#pragma once

#include <span>

#include "holon/array/array.h"

namespace holon::kernels {

struct Sgd {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
};
struct SgdTensor {
  Array parameter, gradient;
  Array momentum;           // undefined without momentum
  bool first_step = false;  // the momentum is not read, and becomes the gradient
};
void sgd(const Sgd& options, std::span<const SgdTensor> tensors);

struct Adam {
  double lr = 0.001, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool decoupled = false;  // AdamW: the decay acts on the parameter, not through the gradient
  bool maximize = false, bias_correction = true;
};
struct AdamTensor {
  Array parameter, gradient, mean, square;
  Array largest_square;  // of all steps, for amsgrad; undefined without
  int64_t step = 1;      // counted from 1
};
void adam(const Adam& options, std::span<const AdamTensor> tensors);

// The sum of the squares of all elements, in float64.
double squared_norm(const Array& a);
// a = a * factor
void scale(Array& a, double factor);

}  // namespace holon::kernels
