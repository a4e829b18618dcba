#include "holon/nn/layers.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/nn/init.h"

namespace holon::nn {

namespace {

Tensor blank(const Dims& shape, const Placement& placement, const NdSbp& sbp, DType dtype) {
  return empty(shape, {.placement = placement, .sbp = sbp, .dtype = dtype});
}

// The sbp of a vector with one value per row of a weight.
NdSbp rows_of(NdSbp weight) {
  for (int d = 0; d < weight.size(); ++d)
    if (!weight[d].is_split(0)) weight = weight.with(d, sbp::broadcast());
  return weight;
}

// The layers of PyTorch draw weight and bias within 1 / sqrt(fan_in).
void init_weight_and_bias(const Tensor& weight, const Tensor& bias) {
  init::kaiming_uniform_(weight, std::sqrt(5.0));
  if (!bias.defined()) return;
  auto fan_in = static_cast<double>(init::fan_of(weight.shape()).in);
  double bound = fan_in > 0 ? 1 / std::sqrt(fan_in) : 0;
  init::uniform_(bias, -bound, bound);
}

Dims pair_of(const Dims& given, const char* layer, const char* what) {
  if (given.size() == 1) return {given[0], given[0]};
  if (given.size() != 2) fail_value("{}: {} is {}; give one number, or one each for height and width.", layer, what, given);
  return given;
}

}  // namespace

Linear::Linear(int64_t in_features, int64_t out_features, const LinearOptions& o) {
  weight = register_parameter("weight", blank({out_features, in_features}, o.placement, o.sbp, o.dtype));
  if (o.bias)
    bias = register_parameter("bias", blank({out_features}, o.placement, o.bias_sbp ? o.bias_sbp : rows_of(o.sbp), o.dtype));
  init_weight_and_bias(weight, bias);
}

LayerNorm::LayerNorm(const Dims& shape, const LayerNormOptions& o) : shape_(shape), eps_(o.eps) {
  if (!o.affine) return;
  weight = register_parameter("weight", ones(shape, {.placement = o.placement, .sbp = o.sbp, .dtype = o.dtype}));
  bias = register_parameter("bias", zeros(shape, {.placement = o.placement, .sbp = o.sbp, .dtype = o.dtype}));
}

Embedding::Embedding(int64_t rows, int64_t width, const EmbeddingOptions& o) {
  weight = register_parameter("weight", blank({rows, width}, o.placement, o.sbp, o.dtype));
  init::normal_(weight);
}

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p <= 1)) fail_value("Dropout: p is {}; a probability lies from 0 to 1.", p);
}

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, const Dims& kernel, const Conv2dOptions& o)
    : stride_(pair_of(o.stride, "Conv2d", "stride")),
      padding_(pair_of(o.padding, "Conv2d", "padding")),
      dilation_(pair_of(o.dilation, "Conv2d", "dilation")),
      groups_(o.groups) {
  if (o.groups < 1 || in_channels % o.groups || out_channels % o.groups)
    fail_value("Conv2d: {} groups do not divide {} channels in and {} out.", o.groups, in_channels, out_channels);
  Dims k = pair_of(kernel, "Conv2d", "kernel");
  weight = register_parameter("weight", blank({out_channels, in_channels / o.groups, k[0], k[1]}, o.placement, o.sbp, o.dtype));
  if (o.bias) bias = register_parameter("bias", blank({out_channels}, o.placement, rows_of(o.sbp), o.dtype));
  init_weight_and_bias(weight, bias);
}

Tensor Conv2d::operator()(const Tensor& x) const { return conv2d(x, weight, bias, stride_, padding_, dilation_, groups_); }

MaxPool2d::MaxPool2d(const Dims& kernel, const MaxPool2dOptions& o)
    : kernel_(pair_of(kernel, "MaxPool2d", "kernel")),
      stride_(o.stride.empty() ? kernel_ : pair_of(o.stride, "MaxPool2d", "stride")),
      padding_(pair_of(o.padding, "MaxPool2d", "padding")) {}

Tensor MaxPool2d::operator()(const Tensor& x) const { return max_pool2d(x, kernel_, stride_, padding_); }

}  // namespace holon::nn
