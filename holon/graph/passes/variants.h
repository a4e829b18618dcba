// Several captures of one step, for micro-batches of unequal rows, as one graph.
#pragma once

#include <optional>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// The graph with all of these as its variants: what happens for each micro-batch is there once for each variant, what
// happens once per step is the first one's, as are scopes, externals and updates. variant_of: of each micro-batch.
// Nothing where the variants do not come to the same sums over micro-batches; missing: if not null, gets the parameter
// whose gradient that is. Pre: passes have run on each, with the same options.
std::optional<Graph> join_variants(const std::vector<Graph>& variants, std::vector<int8_t> variant_of,
                                   std::string* missing = nullptr);

// One variant by itself, for pictures.
Graph only_variant(const Graph& g, int variant);

}  // namespace holon::graph
