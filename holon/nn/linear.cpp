#include "holon/nn/linear.h"

#include <cmath>
#include <set>
#include <string>
#include <typeinfo>

#include "holon/base/error.h"
#include "holon/nn/attention.h"
#include "holon/nn/init.h"
#include "holon/nn/module_access.h"
#include "holon/nn/quantize.h"
#include "holon/nn/weights.h"

namespace holon::nn {

Linear::Linear(int64_t in_features, int64_t out_features, const LinearOptions& o) : in_features_(in_features) {
  weight = register_parameter("weight", blank({out_features, in_features}, o.placement, o.sbp, o.dtype));
  if (o.bias)
    bias = register_parameter("bias",
                              blank({out_features}, o.placement, o.bias_sbp ? o.bias_sbp : beside(o.sbp), o.dtype));
  draw_weight_and_bias(weight, bias);
}

Tensor Linear::quantized(const Tensor& x) const { return quantized_product(x, weight, bias, in_features_); }

std::vector<ProductModule> linear_modules(const Module& module) {
  using Access = detail::ModuleAccess;
  auto attends = [](const Module& m) {
    return Access::has_parameter_of(m, "in_proj_weight", typeid(MultiheadAttention)) ||
        Access::has_parameter_of(m, "q_proj_weight", typeid(MultiheadAttention));
  };
  std::set<std::string> not_called;
  if (attends(module)) not_called.insert("out_proj");
  std::vector<ProductModule> found;
  for (auto& [path, child] : module.named_modules()) {
    if (attends(child)) not_called.insert(path + ".out_proj");
    if (Access::has_parameter_of(child, "weight", typeid(Linear)) && !not_called.contains(path))
      found.push_back({path});
  }
  return found;
}

Bilinear::Bilinear(int64_t in1_features, int64_t in2_features, int64_t out_features, const LinearOptions& o) {
  weight = register_parameter("weight", blank({out_features, in1_features, in2_features}, o.placement, o.sbp, o.dtype));
  if (o.bias)
    bias = register_parameter("bias",
                              blank({out_features}, o.placement, o.bias_sbp ? o.bias_sbp : beside(o.sbp), o.dtype));
  double bound = in1_features > 0 ? 1 / std::sqrt(static_cast<double>(in1_features)) : 0;
  for (auto& p : parameters()) init::uniform_(p, -bound, bound);
}

Tensor Unflatten::forward(const Tensor& x) const {
  int64_t dim = dim_ < 0 ? dim_ + x.ndim() : dim_;
  if (dim < 0 || dim >= x.ndim()) fail_value("Unflatten: axis {} is out of range for x {}.", dim_, x.shape());
  if (sizes_.numel() != x.shape()[static_cast<int>(dim)])
    fail_value("Unflatten: axis {} of x {} cannot be unflattened into {}. Give sizes whose product is its size.", dim_,
               x.shape(), sizes_);
  Dims shape;
  for (int a = 0; a < x.ndim(); ++a) {
    if (a != dim)
      shape.push_back(x.shape()[a]);
    else
      for (int64_t n : sizes_) shape.push_back(n);
  }
  return x.reshape(shape);
}

}  // namespace holon::nn
