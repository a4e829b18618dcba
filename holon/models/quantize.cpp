#include "holon/nn/quantize.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "holon/checkpoint/core/world.h"
#include "holon/models/gpt2.h"
#include "holon/models/model.h"
#include "holon/nn/module_access.h"

namespace holon::models {

namespace {

// The names of products that decide rather than compute: routers, and classifiers. They are small, and a wrong choice
// costs more than a rounded sum.
constexpr std::string_view kDeciding[] = {"gate", "shared_expert_gate", "classifier"};

}  // namespace

void Model::quantize(const QuantizeOptions& o) {
  std::vector<nn::QuantizedModule> products = nn::linear_modules(*this);
  for (auto& [path, child] : named_modules())
    if (nn::detail::ModuleAccess::has_parameter_of(child, "weight", typeid(Conv1D))) products.push_back({path, true});
  std::erase_if(products, [&](const nn::QuantizedModule& p) {
    const std::string_view name = std::string_view(p.path).substr(p.path.rfind('.') + 1);
    if (name == "lm_head") return !o.lm_head;
    return std::find(std::begin(kDeciding), std::end(kDeciding), name) != std::end(kDeciding);
  });
  nn::quantize(*this, products, {.bits = o.bits, .group_size = o.group_size},
               [](const auto& step) { checkpoint::together("quantize", step); });
}

}  // namespace holon::models
