#include "holon/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "holon/base/error.h"

namespace holon::optim {

double cosine_lr(int64_t step, double peak, int64_t warmup_steps, int64_t total_steps, double lowest) {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  if (step >= total_steps) return lowest;
  double done = static_cast<double>(step - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  return lowest + (peak - lowest) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

double step_lr(int64_t step, double base, int64_t period, double gamma) {
  if (period < 1) fail_value("step_lr: the period must be at least 1 step, found {}.", period);
  return base * std::pow(gamma, static_cast<double>(step / period));
}

}  // namespace holon::optim
