#include "holon/nn/conv.h"

#include "holon/base/error.h"
#include "holon/nn/weights.h"
#include "holon/ops/conv.h"
#include "holon/ops/resize.h"

namespace holon::nn {

namespace {

void check_groups(int64_t groups, int64_t in, int64_t out, const char* layer) {
  if (groups < 1 || in % groups || out % groups)
    fail_value("{}: {} groups must divide {} input and {} output channels.", layer, groups, in, out);
}

Dims with_window(Dims shape, const Dims& kernel) {
  for (int64_t k : kernel) shape.push_back(k);
  return shape;
}

}  // namespace

template <int kAxes>
Conv<kAxes>::Conv(int64_t in_channels, int64_t out_channels, const ExpandingDims<kAxes>& kernel, const ConvOptions& o)
    : stride_(sizes_of(o.stride, kAxes, "Conv", "stride")),
      padding_(sizes_of(o.padding, kAxes, "Conv", "padding")),
      dilation_(sizes_of(o.dilation, kAxes, "Conv", "dilation")),
      groups_(o.groups),
      padding_mode_(o.padding_mode) {
  check_groups(o.groups, in_channels, out_channels, "Conv");
  if (padding_mode_ != "zeros" && padding_mode_ != "reflect" && padding_mode_ != "replicate" &&
      padding_mode_ != "circular")
    fail_value("Conv: padding_mode is '{}'; it must be 'zeros', 'reflect', 'replicate' or 'circular'.", padding_mode_);
  Dims shape = with_window({out_channels, in_channels / o.groups}, sizes_of(kernel, kAxes, "Conv", "kernel"));
  weight = this->register_parameter("weight", blank(shape, o.placement, o.sbp, o.dtype));
  if (o.bias)
    bias =
        this->register_parameter("bias",
                                 blank({out_channels}, o.placement, o.bias_sbp ? o.bias_sbp : beside(o.sbp), o.dtype));
  draw_weight_and_bias(weight, bias);
}

template <int kAxes>
Tensor Conv<kAxes>::forward(const Tensor& given) const {
  Tensor x = given;
  Dims padding = padding_;
  if (padding_mode_ != "zeros") {
    Dims sides;  // before and after each axis, the last first
    for (int a = kAxes - 1; a >= 0; --a) sides.push_back(padding_[a]), sides.push_back(padding_[a]);
    x = pad(x, sides, padding_mode_);
    padding = Dims::filled(kAxes, 0);
  }
  if constexpr (kAxes == 1)
    return conv1d(x, weight, bias, stride_, padding, dilation_, groups_);
  else if constexpr (kAxes == 2)
    return conv2d(x, weight, bias, stride_, padding, dilation_, groups_);
  else
    return conv3d(x, weight, bias, stride_, padding, dilation_, groups_);
}

template <int kAxes>
ConvTranspose<kAxes>::ConvTranspose(int64_t in_channels, int64_t out_channels, const ExpandingDims<kAxes>& kernel,
                                    const ConvOptions& o)
    : stride_(sizes_of(o.stride, kAxes, "ConvTranspose", "stride")),
      padding_(sizes_of(o.padding, kAxes, "ConvTranspose", "padding")),
      output_padding_(sizes_of(o.output_padding, kAxes, "ConvTranspose", "output_padding")),
      dilation_(sizes_of(o.dilation, kAxes, "ConvTranspose", "dilation")),
      groups_(o.groups) {
  check_groups(o.groups, in_channels, out_channels, "ConvTranspose");
  if (o.padding_mode != "zeros")
    fail_value("ConvTranspose: padding_mode is '{}'; a transposed convolution only supports 'zeros'.", o.padding_mode);
  Dims shape = with_window({in_channels, out_channels / o.groups}, sizes_of(kernel, kAxes, "ConvTranspose", "kernel"));
  weight = this->register_parameter("weight", blank(shape, o.placement, o.sbp, o.dtype));
  // The outputs are axis 1 of the weight, and all of them only without groups.
  if (o.bias)
    bias = this->register_parameter("bias",
                                    blank({out_channels}, o.placement,
                                          o.bias_sbp ? o.bias_sbp : beside(o.sbp, o.groups == 1 ? 1 : -1), o.dtype));
  draw_weight_and_bias(weight, bias);
}

template <int kAxes>
Tensor ConvTranspose<kAxes>::forward(const Tensor& x) const {
  if constexpr (kAxes == 1)
    return conv_transpose1d(x, weight, bias, stride_, padding_, output_padding_, groups_, dilation_);
  else if constexpr (kAxes == 2)
    return conv_transpose2d(x, weight, bias, stride_, padding_, output_padding_, groups_, dilation_);
  else
    return conv_transpose3d(x, weight, bias, stride_, padding_, output_padding_, groups_, dilation_);
}

template class Conv<1>;
template class Conv<2>;
template class Conv<3>;
template class ConvTranspose<1>;
template class ConvTranspose<2>;
template class ConvTranspose<3>;

}  // namespace holon::nn
