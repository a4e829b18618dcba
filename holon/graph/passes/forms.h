// Several captures of one step, for micro-batches of unequal rows, as one graph.
#pragma once

#include <optional>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// The graph with all of these as its forms: what happens for each micro-batch stands once for each form, what happens
// once per step is the first one's, as are scopes, externals and updates. form_of: of each micro-batch. Nothing where
// the forms do not come to the same sums over micro-batches; missing: if not null, gets the parameter whose gradient
// that is. Pre: passes have run on each, with the same options.
std::optional<Graph> join_forms(const std::vector<Graph>& forms, std::vector<int8_t> form_of,
                                std::string* missing = nullptr);

// One form by itself, for pictures.
Graph only_form(const Graph& g, int form);

}  // namespace holon::graph
