// Dropout: in training, zeros at random.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

// Zeroes elements with probability p while training, and scales the others by 1 / (1 - p).
class Dropout : public Layer<Dropout> {
 public:
  // Errors: p outside [0, 1].
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) const { return dropout(x, p_, is_training()); }

 private:
  double p_;
};

}  // namespace holon::nn
