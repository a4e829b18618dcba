#include "holon/nn/norm.h"

namespace holon::nn {

LayerNorm::LayerNorm(const Dims& shape, const LayerNormOptions& o) : shape_(shape), eps_(o.eps) {
  if (!o.affine) return;
  weight = register_parameter("weight", ones(shape, {.placement = o.placement, .sbp = o.sbp, .dtype = o.dtype}));
  if (o.bias) bias = register_parameter("bias", zeros(shape, {.placement = o.placement, .sbp = o.sbp, .dtype = o.dtype}));
}

}  // namespace holon::nn
