#include "holon/nn/quantize.h"

#include <vector>

#include "holon/checkpoint/core/world.h"
#include "holon/models/model.h"
#include "holon/models/products.h"

namespace holon::models {

void Model::quantize(const QuantizeOptions& o) {
  std::vector<nn::ProductModule> products = products_of(*this);
  // Those that decide are small, and a wrong choice costs more than a rounded sum.
  std::erase_if(products, [&](const nn::ProductModule& p) {
    return is_router(p.path) || (is_head(p.path) && !(o.lm_head && last_name(p.path) == "lm_head"));
  });
  nn::quantize(*this, products, {.bits = o.bits, .group_size = o.group_size},
               [](const auto& step) { checkpoint::together("quantize", step); });
  changes_->bits = o.bits;
}

}  // namespace holon::models
