// The seeds of a rank's own draws, and of those that several ranks make together. Header of dispatch/ and graph/.
#pragma once

#include <cstdint>
#include <span>

#include "holon/global/placement.h"

namespace holon {

struct RandomState;

// Local draws of a program that set no seed differ from rank to rank.
uint64_t seed_of_local_draws(const RandomState& state);

// Element i of a global draw is the same for all ranks that hold it, so that they must draw from one seed. Programs
// that seed each rank in its own way, as manual_seed(seed + rank), get the first rank's. Collective over the ranks,
// once for each manual_seed(); nothing is asked where no seed was set.
uint64_t seed_of_global_draws(const Placement& placement);
uint64_t seed_of_global_draws(std::span<const int> ranks);

// A new seed has been set: it is agreed upon again.
void forget_agreed_seeds();

}  // namespace holon
