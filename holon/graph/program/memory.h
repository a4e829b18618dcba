// Where values are in one block of memory, by when they live.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace holon::graph {

struct Lifetime {
  int32_t first = 0, last = 0;  // instructions; both ends count
  size_t bytes = 0;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // of each, multiples of 64
  size_t bytes = 0;             // of the block
  size_t peak_bytes = 0;        // the most that lives at once: no plan can be smaller
  size_t sum_bytes = 0;         // without sharing
};

// Two that live at once do not overlap. Best fit in the order of first use; for lists that are not long, also by
// falling size, and the smaller block is taken. Deterministic.
MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes);

}  // namespace holon::graph
