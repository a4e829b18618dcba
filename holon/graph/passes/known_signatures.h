// The signatures of nodes, worked out once for all that are alike: models repeat their blocks.
#pragma once

#include <unordered_map>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

class KnownSignatures {
 public:
  struct Of {
    SmallVec<Meta, 4> in;
    SmallVec<Meta, 2> out;
    std::vector<Signature> signatures;
  };
  // Of a node with an op. It stays where it is.
  const Of& of(const Graph& g, const Node& n);

 private:
  std::unordered_map<uint64_t, Of> known_;  // by what decides it
};

}  // namespace holon::graph
