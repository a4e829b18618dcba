// The cheapest path of steps. Pure.
#pragma once

#include <vector>

#include "holon/boxing/price.h"

namespace holon::boxing {

// The specs along the cheapest path, both ends included, among those that keep to the memory bound: a rank's parts of
// the specs between the ends, and of any two that follow each other, together do not exceed the larger of its
// parts of the ends.
//
// On the source's placement and on the target's, every nd_sbp of B, S and P is a place to pass: P where an end on that
// placement has it, and on the source's only if it begins there, unless there is but one placement. S is along all axes
// of the tensor, or, where those make too many places, along those that an end cuts and the longest one. Of two equal
// paths the shorter wins, then the one that reads less. Hierarchies with too many places all the same get an exchange.
std::vector<const GlobalSpec*> cheapest_path(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                             DType dtype, const Machine& machine);

// The tensor axes that paths between the two cut.
std::vector<int> cut_axes(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape);

}  // namespace holon::boxing
