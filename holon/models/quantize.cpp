#include "holon/nn/quantize.h"

#include <vector>

#include "holon/base/error.h"
#include "holon/checkpoint/core/world.h"
#include "holon/models/model.h"
#include "holon/models/moe.h"
#include "holon/models/products.h"
#include "holon/nn/module_access.h"

namespace holon::models {

namespace {

// Hidden units of experts that ranks share are the inputs of down_proj: what one has of them is whole groups.
void check_experts(const Model& model, const QuantizeOptions& o) {
  const int64_t tp = model.layouts().front().parallel.tp;
  for (auto& [path, child] : model.named_modules()) {
    if (!nn::detail::ModuleAccess::has_parameter_of(child, "down_proj", typeid(SparseMoe))) continue;
    const int64_t hidden = child.get_parameter("down_proj").size(2);
    if (o.group_size > 0 && hidden % o.group_size == 0 && hidden / o.group_size % tp != 0)
      fail_value("quantize: the {} hidden units of the experts in '{}' are {} groups, which tp {} does not divide. "
                 "Choose a smaller group_size, or another tp.",
                 hidden, path, hidden / o.group_size, tp);
  }
}

}  // namespace

void Model::quantize(const QuantizeOptions& o) {
  std::vector<nn::ProductModule> products = products_of(*this);
  // Those that decide are small, and a wrong choice costs more than a rounded sum.
  std::erase_if(products, [&](const nn::ProductModule& p) {
    return is_router(p.path) || (is_head(p.path) && !(o.lm_head && last_name(p.path) == "lm_head"));
  });
  for (auto& [path, child] : named_modules())
    if (nn::detail::ModuleAccess::has_parameter_of(child, "down_proj", typeid(SparseMoe)))
      for (const char* weight : {"gate_proj", "up_proj", "down_proj"}) products.push_back({path, false, weight});
  check_experts(*this, o);
  nn::quantize(*this, products, {.bits = o.bits, .group_size = o.group_size, .format = o.format},
               [](const auto& step) { checkpoint::together("quantize", step); });
  changes_->group_size = o.group_size;
}

}  // namespace holon::models
