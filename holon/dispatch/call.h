// Ops by their names.
#pragma once

#include <string_view>
#include <vector>

#include "holon/registry/attr_value.h"
#include "holon/tensor/tensor.h"

namespace holon {

// Runs any op by its name, with its attributes by theirs: call("sum", {x}, {{"dim", Dims{0}}}). For ops of a user's
// library, which have no generated C++ function; an absent optional tensor is Tensor(). Errors: as dispatch(); an
// unknown op.
std::vector<Tensor> call(std::string_view op, TensorList inputs, const std::vector<NamedAttr>& attrs);
std::vector<Tensor> call(std::string_view op, TensorList inputs);

}  // namespace holon
