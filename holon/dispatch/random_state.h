// The random state of a thread of this rank.
#pragma once

#include <cstdint>

namespace holon {

// A seed, and one counter each for draws of local and of global tensors. The first thread of a rank begins with the
// default seed, every other one with a number that follows from it.
struct RandomState {
  RandomState();
  uint64_t seed = 67280421310721ull;  // PyTorch's default
  bool seeded = false;                // by the user: local draws are then alike on all ranks
  int64_t local_counter = 0, global_counter = 0;
};
RandomState& random_state();
void manual_seed(uint64_t seed);

}  // namespace holon
