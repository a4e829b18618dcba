// Recomputation that a memory budget asks for.
#pragma once

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// Chooses what backward computes again, as little as brings estimate_peak_bytes() to the budget or below.
// Errors (ValueError): nothing does; with the least that is possible.
void recompute_for_budget(Graph& g, int64_t budget_bytes);

// What leaves a module of which nodes are chosen (made_in: by value, its number, or -1) and is therefore there anyway.
// region: by node.
std::vector<bool> leaving_values(const Graph& g, const std::vector<int32_t>& region,
                                 const std::vector<int32_t>& made_in);

}  // namespace holon::graph
