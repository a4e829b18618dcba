// Pools: one number for each window.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

// Sizes: one number, or one for each axis of the window.
struct PoolOptions {
  Dims stride{};  // the kernel's sizes if empty
  Dims padding{0};
  bool ceil_mode = false;
};
using MaxPool2dOptions = PoolOptions;

// The largest element of each window of [n, c, h, w].
class MaxPool2d : public Layer<MaxPool2d> {
 public:
  explicit MaxPool2d(const Dims& kernel, const PoolOptions& options = {});
  Tensor forward(const Tensor& x) const { return max_pool2d(x, kernel_, stride_, padding_, ceil_mode_); }

 private:
  Dims kernel_, stride_, padding_;
  bool ceil_mode_;
};

}  // namespace holon::nn
