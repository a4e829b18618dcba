// Which stages of a graph share ranks.
#pragma once

#include <set>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// Whether a node brings a value from one placement to another.
bool changes_placement(const Graph& g, const Node& n);

// The ranks that work for each stage; none: local tensors alone, which are everybody's.
std::vector<std::set<int>> ranks_of_stages(const Graph& g);

// A number for each stage, from 0 in the stages' order: stages with a rank in common have the same one.
std::vector<int> devices_of(const std::vector<std::set<int>>& ranks);

}  // namespace holon::graph
