// Values that every rank has alike, as global tensors.
#pragma once

#include <utility>

#include "holon/ops/values.h"

namespace holon::data {

using holon::place;

// The global tensor of `size` rows of which each rank loaded its part: `rows` are those that part_rows() names, as a
// local tensor; where they are none, any row, which tells shape and dtype. Nothing is sent. Axes behind the first are
// cut here. Errors: another number of rows; a partial sum; a global tensor.
Tensor join_rows(const Tensor& rows, int64_t size, const Placement& placement, const NdSbp& nd_sbp);

// In pinned memory, where it lies on the CPU. Errors: there is no device.
Tensor pinned(const Tensor& t);

// The first row and the number of rows that this rank has of a tensor with `size` rows; none on ranks outside.
std::pair<int64_t, int64_t> part_rows(int64_t size, const Placement& placement, const NdSbp& nd_sbp);

}  // namespace holon::data
