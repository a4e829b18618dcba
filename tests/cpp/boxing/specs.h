// Lists of specs for boxing tests.
#pragma once

#include <vector>

#include "holon/global/spec.h"

namespace holon::testing_boxing {

// Every nd_sbp of `options` along the hierarchy of the placement.
inline std::vector<const GlobalSpec*> all_specs(const Placement& placement, const std::vector<Sbp>& options) {
  std::vector<const GlobalSpec*> specs;
  size_t count = 1;
  int axes = placement.hierarchy().size();
  for (int a = 0; a < axes; ++a) count *= options.size();
  for (size_t i = 0; i < count; ++i) {
    std::vector<Sbp> list;
    size_t rest = i;
    for (int a = 0; a < axes; ++a, rest /= options.size()) list.push_back(options[rest % options.size()]);
    specs.push_back(intern_spec(placement, NdSbp(list)));
  }
  return specs;
}

inline std::vector<Sbp> options_of(int tensor_axes) {
  std::vector<Sbp> options = {sbp::broadcast(), sbp::partial_sum()};
  for (int d = 0; d < tensor_axes; ++d) options.push_back(sbp::split(d));
  return options;
}

}  // namespace holon::testing_boxing
