// What the passes that make kFused nodes share.
#pragma once

#include <vector>

#include "holon/graph/ir/readers.h"

namespace holon::graph {

// Inputs that the members, in order, do not make themselves: each once, in the order in which they are read.
std::vector<ValueId> inputs_of(const Graph& g, const std::vector<NodeId>& members);

// Whether nobody but members reads the node's outputs before node `last` is through.
bool read_later_only(const Readers& readers, const Node& n, const std::vector<NodeId>& members, NodeId last);

// Puts one kFused node in the place of `last`, and marks the other members, which are in order, as gone. Values that
// others read are its outputs.
void make_chain(Graph& g, const Readers& readers, const std::vector<NodeId>& members, NodeId last,
                std::vector<bool>& gone);

}  // namespace holon::graph
