// What the compilation of a step came to.
#pragma once

#include <cstdint>

namespace holon::graph {

struct StepStats {
  int64_t captured_nodes = 0, nodes = 0;  // before and after the passes, of all ranks
  int64_t instructions = 0;               // of this rank, in a step
  int64_t arena_bytes = 0;                // this rank's values, all of them
  int64_t sum_bytes = 0;                  // what they would take without sharing memory
  int64_t recorded = 0;                   // launches of a step that represent many instructions (CUDA graphs)
  double capture_s = 0, passes_s = 0, lowering_s = 0;
};

}  // namespace holon::graph
