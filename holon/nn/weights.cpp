#include "holon/nn/weights.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/nn/init.h"
#include "holon/ops/create.h"

namespace holon::nn {

Tensor blank(const Dims& shape, const Placement& placement, const NdSbp& sbp, DType dtype) {
  return empty(shape, {.placement = placement, .sbp = sbp, .dtype = dtype});
}

NdSbp beside(const NdSbp& weight, int axis) {
  NdSbp sbp = weight;
  for (int d = 0; d < weight.size(); ++d)
    sbp = sbp.with(d, axis >= 0 && weight[d].is_split(axis) ? sbp::split(0) : sbp::broadcast());
  return sbp;
}

void draw_weight_and_bias(const Tensor& weight, const Tensor& bias) {
  init::kaiming_uniform_(weight, std::sqrt(5.0));
  if (!bias.defined()) return;
  auto fan_in = static_cast<double>(init::fan_of(weight.shape()).in);
  double bound = fan_in > 0 ? 1 / std::sqrt(fan_in) : 0;
  init::uniform_(bias, -bound, bound);
}

Dims sizes_of(const Dims& given, int n, const char* layer, const char* what) {
  if (given.size() == 1) return Dims::filled(n, given[0]);
  if (given.size() != n) fail_value("{}: {} is {}; give one number, or {}: one for each axis.", layer, what, given, n);
  return given;
}

}  // namespace holon::nn
