// Tensors without the ops: for headers that only pass them around. Placements, sbps, dtypes, devices, operators and
// printing are part of it.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "holon/base/rank.h"
#include "holon/ops/operators.h"
#include "holon/tensor/print.h"
#include "holon/tensor/tensor.h"

namespace holon {

// placement("cpu", {0, 1}): ranks in a row. placement("cpu", {2, 2}, {0, 1, 2, 3}): in a grid, row by row.
inline Placement placement(std::string_view type, std::vector<int64_t> ranks) {
  return Placement(type, std::move(ranks));
}
inline Placement placement(std::string_view type, const Dims& hierarchy, std::vector<int64_t> ranks) {
  return Placement(type, hierarchy, std::move(ranks));
}

}  // namespace holon
