// Cuts a chain of blocks into pipeline stages.
#pragma once

#include <span>
#include <vector>

namespace holon::graph {

// Returns the first block of each stage (the first one is 0) such that the most expensive stage costs least. costs: of
// each block. cut_costs: of a cut behind each block but the last, paid by both stages next to it, one of which sends
// what the other receives. Among the best cuts, stage 0 gets as few blocks as possible, then stage 1, and so on:
// earlier stages hold the activations of more micro-batches in 1F1B. Takes O(blocks stages log blocks). Errors
// (ValueError): fewer blocks than stages, no stage, costs below 0 or not finite, cut_costs of another length.
std::vector<int> cut_stages(std::span<const double> costs, int stages, std::span<const double> cut_costs = {});

}  // namespace holon::graph
