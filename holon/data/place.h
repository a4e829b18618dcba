// Values that every rank has alike, as global tensors.
#pragma once

#include <utility>

#include "holon/ops/values.h"

namespace holon::data {

using holon::place;

// In pinned memory, where it is on the CPU. Errors: there is no device.
Tensor pinned(const Tensor& t);

// The first row and the number of rows that this rank has of a tensor with `size` rows; none on ranks outside. Errors:
// a partial sum.
std::pair<int64_t, int64_t> part_rows(int64_t size, const Placement& placement, const NdSbp& nd_sbp);

}  // namespace holon::data
