// What a member of a group takes from the others, element by element.
#pragma once

#include <cstdint>
#include <vector>

#include "holon/array/dims.h"

namespace holon::comm {

// A box of elements that a member copies from one peer, or sums over several, which then are laid out alike.
struct Pull {
  std::vector<int> owners;  // positions among the members, in the order of summation
  int64_t src_start = 0;    // in elements, in the owner's part, which is contiguous
  Dims src_strides;
  int64_t dst_start = 0;  // in elements, in the new part
  Dims shape;
};

}  // namespace holon::comm
