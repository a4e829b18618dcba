// An attribute by name, for calls that are not generated: {{"dim", 0}, {"keepdim", true}}.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "holon/array/device.h"
#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/global/nd_sbp.h"
#include "holon/global/placement.h"

namespace holon {

using AttrValue = std::variant<bool, int64_t, double, std::string, DType, Dims, Device, Placement, NdSbp>;
using NamedAttr = std::pair<std::string, AttrValue>;

}  // namespace holon
