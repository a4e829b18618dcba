#include "holon/base/error.h"
#include "holon/graph/nn_graph.h"
#include "holon/graph/schedule/scheme.h"

namespace holon::nn {

void GraphConfig::enable_amp(bool on, DType dtype) {
  if (dtype != bfloat16 && dtype != float16)
    fail_value("config.enable_amp: the dtype is {}; it must be bfloat16 or float16.", holon::name(dtype));
  amp_ = on;
  amp_dtype_ = dtype;
  ++revision_;
}

void GraphConfig::set_gradient_accumulation_steps(int n, bool uneven) {
  if (n < 1) fail_value("config.set_gradient_accumulation_steps: {} micro-batches; there must be at least one.", n);
  micro_batches_ = n;
  uneven_ = uneven;
  ++revision_;
}

void GraphConfig::enable_zero(bool on, int stage, int64_t min_elements) {
  if (on && (stage < 1 || stage > 3))
    fail_value("config.enable_zero: stage {}; it is 1 (optimizer states are split over data-parallel ranks), 2 "
               "(gradients too) or 3 (parameters too).",
               stage);
  if (min_elements < 0)
    fail_value("config.enable_zero: shards of at least {} elements; give a number that is at least 0.", min_elements);
  step_.zero_stage = on ? stage : 0;
  step_.zero_min_elements = min_elements;
  ++revision_;
}

void GraphConfig::set_memory_budget(int64_t bytes) {
  if (bytes < 0) fail_value("config.set_memory_budget: {} bytes; give a positive number, or 0 for no limit.", bytes);
  step_.memory_budget_bytes = bytes;
  ++revision_;
}

void GraphConfig::set_schedule(const std::string& schedule) {
  step_.schedule =
      schedule == graph::kAutoSchedule ? schedule : graph::find_scheme("config.set_schedule", schedule)->name;
  ++revision_;
}

void GraphConfig::set_stages(int n, std::vector<Placement> placements) {
  if (n < 1) fail_value("config.set_stages: {} stages; there must be at least one.", n);
  if (!placements.empty() && static_cast<int>(placements.size()) != n)
    fail_value("config.set_stages: {} placements for {} stages; give one for each, or none.", placements.size(), n);
  stages_ = n;
  placements_ = std::move(placements);
  ++revision_;
}

void GraphConfig::set_bucket_bytes(int64_t bytes) {
  if (bytes < 1) fail_value("config.set_bucket_bytes: {} bytes; give a positive number.", bytes);
  step_.bucket_bytes = bytes;
  ++revision_;
}

void GraphConfig::disable_passes(std::vector<std::string> names) {
  step_.disabled_passes = std::move(names);
  ++revision_;
}

void GraphConfig::verify(bool on) {
  step_.verify = on;
  ++revision_;
}

std::string GraphConfig::str() const {
  const graph::StepOptions plain;
  std::vector<std::string> parts;
  if (amp_) parts.push_back(fmt::format("amp {}", holon::name(amp_dtype_)));
  if (micro_batches_ > 1)
    parts.push_back(fmt::format("{} micro-batches{}", micro_batches_, uneven_ ? ", uneven if need be" : ""));
  if (step_.schedule != plain.schedule) parts.push_back("schedule " + step_.schedule);
  if (step_.zero_stage) parts.push_back(fmt::format("ZeRO stage {}", step_.zero_stage));
  if (step_.memory_budget_bytes) parts.push_back(fmt::format("memory budget {} bytes", step_.memory_budget_bytes));
  if (step_.bucket_bytes != plain.bucket_bytes) parts.push_back(fmt::format("buckets of {} bytes", step_.bucket_bytes));
  for (auto& p : step_.disabled_passes) parts.push_back("without pass " + p);
  if (step_.verify) parts.push_back("verified after each pass");
  std::string text;
  for (auto& p : parts) text += (text.empty() ? "" : ", ") + p;
  return text;
}

}  // namespace holon::nn
