#include "holon/nn/conv.h"

#include "holon/base/error.h"
#include "holon/nn/weights.h"

namespace holon::nn {

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, const Dims& kernel, const ConvOptions& o)
    : stride_(sizes_of(o.stride, 2, "Conv2d", "stride")),
      padding_(sizes_of(o.padding, 2, "Conv2d", "padding")),
      dilation_(sizes_of(o.dilation, 2, "Conv2d", "dilation")),
      groups_(o.groups) {
  if (o.groups < 1 || in_channels % o.groups || out_channels % o.groups)
    fail_value("Conv2d: {} groups do not divide {} channels in and {} out.", o.groups, in_channels, out_channels);
  Dims shape{out_channels, in_channels / o.groups};
  for (int64_t k : sizes_of(kernel, 2, "Conv2d", "kernel")) shape.push_back(k);
  weight = register_parameter("weight", blank(shape, o.placement, o.sbp, o.dtype));
  if (o.bias) bias = register_parameter("bias", blank({out_channels}, o.placement, o.bias_sbp ? o.bias_sbp : beside(o.sbp), o.dtype));
  draw_weight_and_bias(weight, bias);
}

}  // namespace holon::nn
