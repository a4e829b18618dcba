// Normalisation.
#pragma once

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

// Normalises the last axes, of sizes `shape`.
struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  // with weight and bias
  bool bias = true;
  Placement placement{};
  NdSbp sbp{};
  DType dtype = float32;
};
class LayerNorm : public Layer<LayerNorm> {
 public:
  LayerNorm(const Dims& shape, const LayerNormOptions& options = {});
  Tensor forward(const Tensor& x) const { return layer_norm(x, shape_, weight, bias, eps_); }
  Tensor weight, bias;

 private:
  Dims shape_;
  double eps_;
};

}  // namespace holon::nn
