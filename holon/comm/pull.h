// What a member of a group takes from the others, element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"

namespace holon::comm {

// A region that a member copies from one peer, or sums over several, which then are laid out alike.
struct Pull {
  std::vector<int> owners;  // positions among the members, in the order of summation
  int64_t src_start = 0;    // in elements, in the owner's part, which is contiguous
  Dims src_strides;
  int64_t dst_start = 0;  // in elements, in the new part
  Dims shape;
};

// Does the pulls: member i's part begins at parts[i]. dst_bytes: of the whole new part.
void pull_all(std::span<const Pull> pulls, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
              const Dims& dst_strides, size_t dst_bytes);

}  // namespace holon::comm
