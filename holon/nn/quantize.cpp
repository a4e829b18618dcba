#include "holon/nn/quantize.h"

#include <algorithm>
#include <utility>

#include "holon/base/error.h"
#include "holon/internal_ops/quantized.h"
#include "holon/ops/shape.h"

namespace holon::nn {

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
  // A block has its numbers' bits, and two bytes.
  const int64_t bits = (weight.size(2) - 2) * 8 / shape.back();
  return quantized_linear(x.reshape(shape), weight, bias, bits);
}

int64_t quantized_inputs(const Tensor& weight, int bits) { return weight.size(1) * (weight.size(2) - 2) * 8 / bits; }

void quantize(Module& module, const std::vector<ProductModule>& products, const QuantizeOptions& o,
              const std::function<void(const std::function<void()>&)>& run) {
  if (o.bits != 4 && o.bits != 8) fail_value("quantize: bits is {}; it must be 4 or 8.", o.bits);
  if (o.group_size < 2 || (o.bits == 4 && o.group_size % 2 != 0))
    fail_value("quantize: group_size is {}; it must be 2 or more, and even for 4 bits.", o.group_size);
  for (auto& p : products) {
    const Tensor weight = module.get_submodule(p.path).get_parameter("weight");
    if (!is_floating(weight.dtype())) fail_value("quantize: '{}' is quantised already.", p.path);
    if (weight.ndim() != 2)
      fail_value("quantize: the weight of '{}' is {}; it must have two axes.", p.path, weight.shape());
    const int64_t in = weight.size(p.transposed ? 0 : 1);
    if (in % o.group_size != 0)
      fail_value("quantize: the group_size {} does not divide the {} inputs of '{}'. Choose one that does.",
                 o.group_size, in, p.path);
  }
  NoGradGuard guard;
  for (auto& p : products) {
    Module of = module.get_submodule(p.path);
    const Tensor held = of.get_parameter("weight").detach(), weight = p.transposed ? held.transpose(0, 1) : held;
    const Tensor numbers = weight.reshape({weight.size(0), weight.size(1) / o.group_size, o.group_size});
    Tensor made;
    const auto here = [&] { made = quantize_groups(numbers, o.bits); };
    run ? run(here) : here();
    if (weight.is_global()) made = made.to_global(weight.placement(), weight.nd_sbp());
    of.replace_parameter("weight", made);
  }
}

}  // namespace holon::nn
