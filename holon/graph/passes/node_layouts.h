// The layouts that a node's op takes and gives, and their form in a contract.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "holon/base/small_vec.h"
#include "holon/graph/ir/graph.h"
#include "holon/graph/passes/known_signatures.h"

namespace holon::graph {

struct NodeLayouts {
  SmallVec<const GlobalSpec*, 4> in;  // nullptr for absent inputs
  SmallVec<const GlobalSpec*, 2> out;
};

// "forward of model.fc: linear float32 [4, 8] S(0), float32 [16, 8] B, - gives S(0) cpu:0-1". Pre: the first output has
// a spec.
std::string call_text(const Graph& g, const Node& n, const KnownSignatures::Of& known, const NodeLayouts& layouts);
// "(S(0), B, -) -> (S(0))".
std::string layouts_text(const NodeLayouts& layouts);
// The same call with the layouts of the text. nullopt: they are not of such a call.
std::optional<NodeLayouts> layouts_from(std::string_view text, const NodeLayouts& before);

}  // namespace holon::graph
