// A tensor takes another one's value, dtype, device and layout, and stays the same object to all who hold it.
#pragma once

#include "holon/tensor/tensor.h"

namespace holon {

// What backward() has kept of the old value does not pass for current afterwards. Pre: both are defined and have a
// value.
void replace_value(const Tensor& to, const Tensor& from);

}  // namespace holon
