// How ranks share out what is to be read of a file.
#pragma once

#include <span>

#include "holon/array/dtype.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::checkpoint {

// The layout in which ranks read a tensor that is to have the layout `target`: itself where each rank's part is in long
// runs of bytes that no other rank needs, else split along an axis, so that every byte is read once and the ranks send
// each other what they need. parts: the regions of the tensor that are in files; axis_order: the axes along which the
// elements of each are in order, the slowest first. Alike on all ranks. Pre: target has no partial sums.
const GlobalSpec* layout_to_read(const GlobalSpec* target, const Dims& shape, DType dtype,
                                 std::span<const Region> parts, std::span<const int> axis_order);

}  // namespace holon::checkpoint
