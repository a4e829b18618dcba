// Convolutions.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

// Sizes: one number, or one for each axis of the window.
struct ConvOptions {
  Dims stride{1}, padding{0}, dilation{1};
  int64_t groups = 1;
  bool bias = true;
  Placement placement{};
  NdSbp sbp{};       // of weight
  NdSbp bias_sbp{};  // by default S(0) where the weight is split along the outputs, else broadcast
  DType dtype = float32;
};
using Conv2dOptions = ConvOptions;

// Convolution of x [n, in, height, width] with weight [out, in / groups, kernel...].
class Conv2d : public Layer<Conv2d> {
 public:
  // Errors: groups that do not divide both numbers of channels.
  Conv2d(int64_t in_channels, int64_t out_channels, const Dims& kernel, const ConvOptions& options = {});
  Tensor forward(const Tensor& x) const { return conv2d(x, weight, bias, stride_, padding_, dilation_, groups_); }
  Tensor weight, bias;

 private:
  Dims stride_, padding_, dilation_;
  int64_t groups_;
};

}  // namespace holon::nn
