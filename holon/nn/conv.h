// Convolutions of signals, images and volumes, and their transposes.
#pragma once

#include "holon/nn/module.h"

namespace holon::nn {

// Sizes: one number, or one for each axis of the window.
struct ConvOptions {
  Dims stride{1}, padding{0}, dilation{1};
  Dims output_padding{
      0};  // of transposes: rows more at the end, as several input sizes of a convolution give one output size
  int64_t groups = 1;
  bool bias = true;
  std::string padding_mode = "zeros";  // or "reflect", "replicate", "circular"
  Placement placement{};
  NdSbp sbp{};       // of weight
  NdSbp bias_sbp{};  // by default S(0) where the weight is split along the outputs, else broadcast
  DType dtype = float32;
};

// Convolution of x [n, in, sizes...] with weight [out, in / groups, kernel...], over kAxes axes.
template <int kAxes>
class Conv : public Layer<Conv<kAxes>> {
 public:
  // Errors: groups that do not divide both numbers of channels; a number of sizes other than 1 and kAxes.
  Conv(int64_t in_channels, int64_t out_channels, const ExpandingDims<kAxes>& kernel, const ConvOptions& options = {});
  Tensor forward(const Tensor& x) const;
  Parameter weight, bias;

 private:
  Dims stride_, padding_, dilation_;
  int64_t groups_;
  std::string padding_mode_;
};
using Conv1d = Conv<1>;
using Conv2d = Conv<2>;
using Conv3d = Conv<3>;

// The transpose of a convolution, which maps its outputs to its inputs; weight [in, out / groups, kernel...].
template <int kAxes>
class ConvTranspose : public Layer<ConvTranspose<kAxes>> {
 public:
  ConvTranspose(int64_t in_channels, int64_t out_channels, const ExpandingDims<kAxes>& kernel,
                const ConvOptions& options = {});
  Tensor forward(const Tensor& x) const;
  Parameter weight, bias;

 private:
  Dims stride_, padding_, output_padding_, dilation_;
  int64_t groups_;
};
using ConvTranspose1d = ConvTranspose<1>;
using ConvTranspose2d = ConvTranspose<2>;
using ConvTranspose3d = ConvTranspose<3>;

}  // namespace holon::nn
