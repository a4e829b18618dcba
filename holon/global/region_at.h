// Slices of grids whose ranks the world may not have.
#pragma once

#include <span>

#include "holon/array/dims.h"
#include "holon/global/sbp.h"
#include "holon/global/slice.h"

namespace holon {

// The part of the rank at a coordinate of a grid: as region_of(). Pre: one sbp for each axis of the hierarchy; split
// axes are the shape's.
Region region_at(const Dims& logical, const Dims& hierarchy, std::span<const Sbp> nd_sbp, const Dims& coordinate);

}  // namespace holon
