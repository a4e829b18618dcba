// What nodes of a graph take, by shapes alone: for pictures of schedules and for cuts into stages. Rough, and the same
// on every rank.
#pragma once

#include "holon/graph/ir/graph.h"
#include "holon/graph/schedule/simulate.h"

namespace holon::graph {

// This value's part on the first rank of its placement.
int64_t part_bytes(const Value& v);
// Multiplications and additions of matrix products and convolutions on one rank; 0 for other nodes.
double flops(const Graph& g, const Node& n);
// What the node takes on one rank, without what other ranks do: by flops, or by the bytes that it reads and writes. 0
// for boxings, relabels and views.
double seconds(const Graph& g, const Node& n);
// What the boxing takes by the machine's figures (holon/cost).
double boxing_seconds(const Graph& g, const Node& n);

// Of each stage for one micro-batch. Where no weights are split off they are a third of backward's time each.
Costs estimate_costs(const Graph& g);

}  // namespace holon::graph
