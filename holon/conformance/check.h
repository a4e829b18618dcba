// The checks of this folder together, as `holon check-op` runs them on a user's ops.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holon/conformance/subject.h"

namespace holon::conformance {

struct Report {
  std::string name;
  int samples = 0;
  int signatures = 0;  // that were run on the parts of 2, 3 and 4 ranks
  int gradients = 0;   // samples whose gradient was compared with finite differences
  int worlds = 0;      // samples times worlds of ranks in which global calls were compared with local ones
  // What is wrong, and with which sample: "scaled_add [5, 6] [6]; alpha=0.5: the rule gives S(0) S(0) -> S(0), ...".
  std::vector<std::string> faults{};
  std::vector<std::string> notes{};  // what was left out, and why
  bool is_sound() const { return samples > 0 && faults.empty(); }
  std::string str() const;  // a line, and one for each fault and note
};

// Runs the samples: the sharding rule gives the parts of the result and lacks no signature that needs no communication;
// gradients are those of finite differences; calls on global tensors equal those on local ones, gradients included,
// under the layouts of up to 4 ranks. Errors (ValueError): there is no such op; a sample of another one.
Report check_op(std::string_view op, std::span<const Sample> samples);

// The same of a function of tensors, such as a call of autograd::apply_function() with a rule: gradients
// and layouts.
Report check_function(const Subject& function);

}  // namespace holon::conformance
