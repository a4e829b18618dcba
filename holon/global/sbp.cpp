#include "holon/global/sbp.h"

#include "holon/base/error.h"

namespace holon {

std::string Sbp::str() const {
  if (is_split()) return "S(" + std::to_string(axis) + ")";
  return is_broadcast() ? "B" : "P";
}

std::string Sbp::long_str() const {
  if (is_split()) return "split(dim=" + std::to_string(axis) + ")";
  return is_broadcast() ? "broadcast" : "partial_sum";
}

Sbp sbp::split(int axis) {
  if (axis < 0)
    fail_runtime("Split axis must not be negative, but got {}! Count the tensor's axes from 0, e.g. split(0).", axis);
  if (axis > 127)
    fail_runtime("Split axis {} is beyond the axes of any tensor. Count them from 0, e.g. split(0).", axis);
  return {Sbp::Kind::kSplit, static_cast<int8_t>(axis)};
}

}  // namespace holon
