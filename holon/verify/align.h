// Which records of two runs are the same: those at the same places of a longest common subsequence, by what they are
// and the line that they come from.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holon/verify/recording.h"

namespace holon::verify {

// Equal for records that may be the same ones.
uint64_t key_of(const Record& record);

// For each element of a, the place in b of the same one, or -1; rising. Myers, "An O(ND) difference algorithm and its
// variations" (1986). Where the two differ in more than 4000 places, elements are matched in their order instead: the
// k-th of a kind with the k-th.
std::vector<int> align(std::span<const uint64_t> a, std::span<const uint64_t> b);

}  // namespace holon::verify
