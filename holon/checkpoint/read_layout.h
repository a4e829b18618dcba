// How ranks share out what is to be read of a file.
#pragma once

#include <cstdint>
#include <span>

#include "holon/array/dtype.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::checkpoint {

// The layout in which ranks read a tensor that is to have the layout `target`: itself where each rank's part is in long
// runs of bytes that no other rank needs, else split along an axis, so that every byte is read once and the ranks send
// each other what they need. parts: the regions of the tensor that are in files, each in row-major order; of one that
// is not read as a whole, each run of bytes costs block_bytes more. Alike on all ranks. Pre: target has no partial
// sums.
const GlobalSpec* layout_to_read(const GlobalSpec* target, const Dims& shape, DType dtype,
                                 std::span<const Region> parts, uint64_t block_bytes);

}  // namespace holon::checkpoint
