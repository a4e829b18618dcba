// The memory of a step on a rank, over its instructions: what the planned lifetimes are, with what is there in addition
// to the arena.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "holon/graph/schedule/schedule.h"
#include "holon/graph/step.h"

namespace holon::graph {

enum class MemoryKind : uint8_t {
  kParameters,
  kStates,       // of optimizers; where no step has run yet, what they will take
  kOutside,      // buffers, constants, and the step's inputs and outputs
  kCopies,       // what is made of parameters once per step: gathered, cast
  kActivations,  // made by forward, read by backward
  kGradients,    // made by backward and there beyond their task: sums, what waits for an update
  kTransit,      // shown to another stage that may not have taken it yet
  kWorkspace,    // of one task
};
inline constexpr size_t kMemoryKinds = 8;
const char* name(MemoryKind kind);

using MemoryBytes = std::array<int64_t, kMemoryKinds>;

struct MemoryTask {
  int first = 0, end = 0;  // instructions
  Task task;
};

struct MemoryUse {
  int rank = 0;
  std::vector<MemoryBytes> at;  // while each instruction runs
  std::vector<MemoryTask> tasks;
  int64_t arena_bytes = 0;     // the block that holds the values; at least their peak
  std::vector<int64_t> arena;  // bytes in it, while each instruction runs

  size_t peak() const;  // the first instruction at which the most is there
  int64_t total(size_t instruction) const;
  MemoryBytes most() const;  // of each kind by itself
};

// This rank's.
MemoryUse memory_use(const Step& step);
// Of all ranks of the world, in their order. Collective: every rank calls it, for the same graph.
std::vector<MemoryUse> memory_use_of_all(const Step& step);

// An SVG: a panel for each rank, instructions to the right, kinds stacked on each other. Errors (ValueError): no rank.
std::string memory_svg(std::span<const MemoryUse> ranks);
// The same in numbers: a row for each kind, at the peak and at most.
std::string memory_text(std::span<const MemoryUse> ranks);

// "12 KiB", "1.5 MiB".
std::string bytes_text(int64_t bytes);

}  // namespace holon::graph
