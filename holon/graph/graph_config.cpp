#include "holon/graph/graph_config.h"

#include "holon/base/error.h"

namespace holon::nn {

void GraphConfig::set(std::string_view name, graph::OptionValue value) {
  set_option(&options_, name, std::move(value));
  ++revision_;
}

void GraphConfig::enable_amp(bool on, DType dtype, std::shared_ptr<Float8Recipe> recipe) {
  if (recipe && !is_float8(dtype))
    fail_value("config.enable_amp: a recipe with the dtype {}; it takes float8_e4m3fn or float8_e5m2.", name(dtype));
  set("amp", std::optional(dtype));  // refuses dtypes also where it is off
  if (!on) set("amp", std::optional<DType>());
  float8_recipe_ = on ? std::move(recipe) : nullptr;
}

void GraphConfig::enable_zero(bool on, int stage, int64_t min_elements) {
  if (on && stage == 0) fail_value("config.enable_zero: stage 0; it is 1, 2 or 3. Pass false to turn it off.");
  const graph::CompileOptions before = options_;
  set("zero_stage", int64_t{on ? stage : 0});
  try {
    set("zero_min_elements", min_elements);
  } catch (...) {
    options_ = before;
    throw;
  }
}

void GraphConfig::set_stages(int n, std::vector<Placement> placements) {
  if (n < 1) fail_value("config.set_stages: {} stages; there must be at least one.", n);
  if (!placements.empty() && static_cast<int>(placements.size()) != n)
    fail_value("config.set_stages: {} placements for {} stages; give one for each, or none.", placements.size(), n);
  stages_ = n;
  placements_ = std::move(placements);
  ++revision_;
}

}  // namespace holon::nn
