// The cheapest path of steps. Pure.
#pragma once

#include <vector>

#include "holon/boxing/price.h"

namespace holon::boxing {

// The specs along the cheapest path, both ends included, among those that keep to the memory bound: a rank's parts of
// the specs between the ends, and of any two that follow each other, together are no larger than the larger of its
// parts of the ends.
//
// On the source's placement and on the target's, every nd_sbp of B, P (where an end has it) and S along the axes that an
// end cuts, and along the longest one, is a place to pass. Of two equal paths the shorter wins, then the one that reads
// less. Hierarchies with too many of these places get an exchange.
std::vector<const GlobalSpec*> cheapest_path(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape,
                                             DType dtype, const Machine& machine);

// The tensor axes that paths between the two cut.
std::vector<int> cut_axes(const GlobalSpec& from, const GlobalSpec& to, const Dims& shape);

}  // namespace holon::boxing
