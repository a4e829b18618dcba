// How ranks share out what is to be read of a file.
#pragma once

#include <cstdint>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::checkpoint {

// How a tensor is stored.
struct StoredParts {
  std::vector<Region> regions;  // of the tensor, disjoint
  // The axes along which the elements of each are in order, the slowest first.
  std::vector<int> axis_order;
  // Of a region that is not read as a whole, each run of bytes costs so many more.
  uint64_t block_bytes = 0;
};

// The layout in which ranks read a tensor that is to have the layout `target`: itself where each rank's part is in long
// runs of bytes that no other rank needs, else split along an axis, so that every byte is read once and the ranks send
// each other what they need. Alike on all ranks. Pre: target has no partial sums.
const GlobalSpec* layout_to_read(const GlobalSpec* target, const Dims& shape, DType dtype, const StoredParts& stored);

}  // namespace holon::checkpoint
