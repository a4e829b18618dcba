// What losses are multiplied by before backward(), so that small gradients do not become 0 in float16.
#pragma once

#include <cmath>

namespace holon::optim {

// The scale follows what the gradients bear: after gradients that are not finite it falls, after growth_interval good
// steps in a row it grows. nn::Graph::set_grad_scaler() multiplies, divides and leaves steps out.
struct GradScaler {
  double scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  int growth_interval = 2000;
  int good_steps = 0;

  // After a step whose gradients were finite, or not.
  void update(bool finite) {
    if (!finite) {
      scale *= backoff_factor;
      good_steps = 0;
    } else if (++good_steps >= growth_interval) {
      if (std::isfinite(scale * growth_factor)) scale *= growth_factor;
      good_steps = 0;
    }
  }
};

}  // namespace holon::optim
