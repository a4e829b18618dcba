// Ranks that run a step together have captured the same graph and compiled the same plan, or all of them fail.
#pragma once

#include <vector>

#include "holon/graph/ir/graph.h"
#include "holon/graph/step.h"

namespace holon::graph {

// The ranks that anything of the graph is on, in order; none for a graph of local tensors.
std::vector<int> ranks_of(const Graph& g);

// Returns a number for the graph that is the same on all of ranks, and another for the same graph compiled again; 0
// where this rank is not among them or alone. Collective over ranks. Errors (RuntimeError, on all of them): they
// differ, naming the first node that does, with its module and line, or the options.
// variants: a capture for each of unequal micro-batches; variant_of: of each micro-batch.
uint64_t check_captures_agree(const std::vector<int>& ranks, const std::vector<Graph>& variants,
                              const std::vector<int8_t>& variant_of, const CompileOptions& options);
// The same after the passes, and of the table of tasks: a function that was registered may depend on the rank.
void check_plans_agree(const std::vector<int>& ranks, const Graph& g, const Schedule& schedule);

}  // namespace holon::graph
