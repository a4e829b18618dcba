// Layouts of tensors that ranks of another world hold, or held.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holon/global/sbp.h"
#include "holon/global/slice.h"
#include "holon/global/spec.h"

namespace holon::checkpoint {

// A placement as it was; the world that reads may lack its ranks.
struct SavedLayout {
  std::string device_type;
  std::vector<int64_t> hierarchy, ranks;
  std::vector<Sbp> nd_sbp;
};

SavedLayout layout_of(const GlobalSpec& spec);

// A region of a tensor, and the ranks that hold it.
struct HeldRegion {
  Region region;
  std::vector<int> ranks;  // in the order of the placement
};

// The regions of a tensor that ranks of the layout hold: disjoint, and together the whole of it; without empty ones.
// Pre: the layout is of one rank or more for each place of its hierarchy, and fits the shape.
std::vector<HeldRegion> held_regions(const Dims& shape, const SavedLayout& layout);

}  // namespace holon::checkpoint
