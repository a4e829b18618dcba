#include "holon/models/products.h"

#include <typeinfo>

#include "holon/models/gpt2.h"
#include "holon/nn/module_access.h"

namespace holon::models {

std::vector<nn::ProductModule> products_of(const nn::Module& model) {
  std::vector<nn::ProductModule> found = nn::linear_modules(model);
  for (auto& [path, child] : model.named_modules())
    if (nn::detail::ModuleAccess::has_parameter_of(child, "weight", typeid(Conv1D))) found.push_back({path, true});
  return found;
}

std::string_view last_name(std::string_view path) { return path.substr(path.rfind('.') + 1); }

bool is_head(std::string_view path) {
  const std::string_view name = last_name(path);
  return name == "lm_head" || name == "classifier";
}

bool is_router(std::string_view path) {
  const std::string_view name = last_name(path);
  return name == "gate" || name == "shared_expert_gate";
}

}  // namespace holon::models
