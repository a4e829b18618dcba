#include "holon/nn/quantize.h"

#include <algorithm>
#include <utility>

#include "holon/base/error.h"
#include "holon/internal_ops/quantized.h"
#include "holon/kernels/quantized.h"
#include "holon/ops/shape.h"

namespace holon::nn {

namespace {

kernels::QuantizedFormat format_of(const QuantizeOptions& o) {
  if (o.format != "int" && o.format != "mxfp4")
    fail_value("quantize: the format is '{}'; it must be int or mxfp4.", o.format);
  if (o.bits != 4 && o.bits != 8) fail_value("quantize: bits is {}; it must be 4 or 8.", o.bits);
  const bool floats = o.format == "mxfp4";
  if (floats && (o.bits != 4 || o.group_size != kernels::kMxGroup))
    fail_value("quantize: mxfp4 with bits {} and group_size {}; it has 4 bits and groups of 32.", o.bits, o.group_size);
  const auto format = floats ? kernels::QuantizedFormat::kMxfp4
      : o.bits == 4          ? kernels::QuantizedFormat::kInt4
                             : kernels::QuantizedFormat::kInt8;
  if (!kernels::fits_format(o.group_size, format))
    fail_value("quantize: group_size is {}; it must be 2 or more, and even for 4 bits.", o.group_size);
  return format;
}

}  // namespace

bool is_quantized(const Module& module) {
  const auto parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const Tensor& p) { return p.dtype() == uint8; });
}

Tensor quantized_product(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t in) {
  if (x.ndim() < 1 || x.size(-1) != in)
    fail_value("a product with a quantised weight: x is {}; its last size must be {}, as in the weight before it was "
               "quantised.",
               x.shape(), in);
  Dims shape = x.shape();
  shape.back() = weight.size(1);
  shape.push_back(in / weight.size(1));
  return quantized_linear(x.reshape(shape), weight, bias,
                          name(kernels::format_of_blocks(shape.back(), weight.size(2))));
}

void quantize(Module& module, const std::vector<ProductModule>& products, const QuantizeOptions& o,
              const std::function<void(const std::function<void()>&)>& run) {
  const kernels::QuantizedFormat format = format_of(o);
  for (auto& p : products) {
    const Tensor weight = module.get_submodule(p.path).get_parameter(p.parameter);
    if (!is_floating(weight.dtype())) fail_value("quantize: '{}' is quantised already.", p.path);
    if (weight.ndim() < 2 || (p.transposed && weight.ndim() != 2))
      fail_value("quantize: the {} of '{}' is {}; it must have two axes.", p.parameter, p.path, weight.shape());
    const int64_t in = weight.size(p.transposed ? 0 : -1);
    if (in % o.group_size != 0)
      fail_value("quantize: the group_size {} does not divide the {} inputs of '{}'. Choose one that does.",
                 o.group_size, in, p.path);
  }
  NoGradGuard guard;
  for (auto& p : products) {
    Module of = module.get_submodule(p.path);
    const Tensor held = of.get_parameter(p.parameter).detach(), weight = p.transposed ? held.transpose(0, 1) : held;
    Dims groups = weight.shape();
    groups.back() /= o.group_size;
    groups.push_back(o.group_size);
    const Tensor numbers = weight.reshape(groups);
    Tensor made;
    const auto here = [&] { made = quantize_groups(numbers, name(format)); };
    run ? run(here) : here();
    if (weight.is_global()) made = made.to_global(weight.placement(), weight.nd_sbp());
    of.replace_parameter(p.parameter, made);
  }
}

}  // namespace holon::nn
