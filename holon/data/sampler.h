// Which samples make up a batch, the same on every rank and machine.
#pragma once

#include <cstdint>
#include <vector>

namespace holon::data {

// The numbers 0 to n - 1 in an order that depends on seed and epoch alone. Errors: n negative.
std::vector<int64_t> permutation(uint64_t seed, uint64_t epoch, int64_t n);

}  // namespace holon::data
