// The end of a loss: what its attribute "reduction" makes of the loss of each element.
#pragma once

#include "holon/ops/reduce.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

inline Tensor reduced(const BodyCall& c, const Tensor& loss) {
  std::string_view reduction = c.text("reduction"_attr);
  if (reduction == "none") return loss;
  if (reduction == "sum") return sum(loss);
  if (reduction == "mean") return mean(loss);
  fail_value("{}: reduction is '{}'; it must be 'mean', 'sum' or 'none'.", c.op().name(), reduction);
}

}  // namespace holon::ops
