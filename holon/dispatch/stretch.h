#pragma once

#include <optional>

#include "holon/array/dims.h"
#include "holon/base/slice_range.h"
#include "holon/registry/op_def.h"

namespace holon {

// The stretch of a tensor of shape `whole` that a call of slice shows, or that one of slice_backward fills: nothing if
// it is empty or has gaps.
std::optional<Stretch> stretch_of(const AttrReader& call, const Dims& whole);
// Likewise of a call of select.
Stretch element_of(const AttrReader& call, const Dims& whole);

}  // namespace holon
