// The chain of modules that a capture saw, what each of them takes, and where to cut it into stages.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

struct Chain {
  std::vector<std::string> blocks;  // modules' paths in the order of their first ops; those without ops are left out
  std::vector<double> costs;        // seconds of forward and backward, by shapes
  std::vector<int64_t> bytes;       // behind each block but the last: what later blocks read of it and of those before
  std::vector<double> cut_costs;    // what it takes to send these bytes, and their gradients back
  std::vector<int> first;           // block of each stage
  // Of inputs and externals: the blocks that read them, sorted; empty for those that nobody reads.
  std::vector<std::vector<int>> input_readers, external_readers;

  int stage_of(int block) const;
};

// g: as it was captured. paths: modules that are not in each other. Ops outside them count with the block that
// ran before, those before the first one with the first. Errors (ValueError): more stages than blocks.
Chain cut_chain(const Graph& g, std::span<const std::string> paths, int stages);

}  // namespace holon::graph
