// Nodes of forward that backward runs again, so that their values need not be kept in between.
#pragma once

#include <functional>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// Each reader in backward of a value of a chosen node reads a copy, made by a pinned copy of the node right before the
// first such reader, out of copies where its inputs are of chosen nodes too. chosen: by node; kept: by value, what is
// read as it is. Post: random draws keep their places, so copies have the same values. Pre: chosen nodes may run again
// (may_run_again). Returns how many nodes were copied.
int64_t clone_into_backward(Graph& g, const std::vector<bool>& chosen, const std::vector<bool>& kept);

// By node: whether running it again in backward gives the same. Not what reads memory that a micro-batch writes to.
std::vector<bool> may_run_again(const Graph& g);

}  // namespace holon::graph
