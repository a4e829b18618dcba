// What each call of a compiled graph moves between ranks, as entries of a contract.
#pragma once

#include <utility>
#include <vector>

#include "holon/contract/document.h"
#include "holon/graph/ir/graph.h"

namespace holon::graph {

// In the order of the nodes, of all stages: the same on every rank. Alike entries of one line come one by one. Pre:
// passes have run.
std::vector<std::pair<contract::Site, contract::Entry>> contract_entries(const Graph& g);

}  // namespace holon::graph
