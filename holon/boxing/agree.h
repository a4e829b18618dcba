// One value for what each rank gives as broadcast: the step that makes local tensors a global one.
#pragma once

#include <cstdint>
#include <vector>

#include "holon/array/array.h"
#include "holon/global/spec.h"

namespace holon::boxing {

// This rank's part of a tensor of the given logical shape, where ranks along broadcast axes take the first one's value:
// `mine` itself where it stays. Collective over the placement. Errors: with HOLON_CHECK=1, values that differ.
Array agree_on_value(const Array& mine, const GlobalSpec* spec, const Dims& shape);

// What that reads from others on each rank of the placement, in its order.
std::vector<int64_t> agreed_bytes(const GlobalSpec& spec, const Dims& shape, DType dtype);

}  // namespace holon::boxing
