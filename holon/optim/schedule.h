// Learning rates as pure functions of the step, which counts from 0.
#pragma once

#include <cstdint>

namespace holon::optim {

// Rises linearly to peak over warmup_steps (the first step takes peak / warmup_steps), then falls along half a cosine to
// `lowest`, which it has from total_steps on.
double cosine_lr(int64_t step, double peak, int64_t warmup_steps, int64_t total_steps, double lowest = 0);

// base * gamma^(step / period), with the quotient rounded down. Errors: period below 1.
double step_lr(int64_t step, double base, int64_t period, double gamma = 0.1);

}  // namespace holon::optim
