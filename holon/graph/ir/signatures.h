// Which layouts an op takes as they are, on nodes of a graph.
#pragma once

#include <span>

#include "holon/base/small_vec.h"
#include "holon/graph/ir/graph.h"

namespace holon::graph {

// What a node's op is given and gives. Absent inputs have an empty meta and no spec, local values no spec.
struct NodeCall {
  NodeCall(const Graph& g, const Node& n);
  SmallVec<Meta, 4> in, out;
  SmallVec<const GlobalSpec*, 4> in_specs, out_specs;
};

// Whether the op runs on inputs of these specs without boxing and gives outputs of those. in_specs[i] is nullptr for an
// absent input. Pre: the metas are what the op infers.
bool has_signature(const OpDef& op, const Attrs& attrs, std::span<const Meta> in, std::span<const Meta> out,
                   std::span<const GlobalSpec* const> in_specs, std::span<const GlobalSpec* const> out_specs);
// The same of a node and its values; true for local ones.
bool has_signature(const Graph& g, const Node& n);

}  // namespace holon::graph
