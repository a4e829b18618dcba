// A stage's nodes by module, as a picture shows them: frames in frames, with backward next to the forward it belongs
// to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

struct Outline {
  // Nodes of the module itself, or a module in it.
  struct Row {
    std::vector<NodeId> forward, backward;  // backward: the last one to run comes first
    std::unique_ptr<Outline> group;
  };
  std::string name;  // of the module in the one around it
  std::vector<Row> rows;
  // So many modules that follow each other are alike; the others' nodes, in the order of this one's nodes().
  int repeats = 1;
  std::string last_name;
  std::vector<std::vector<NodeId>> others;

  std::vector<NodeId> nodes() const;  // all, rows from the top: forward, then backward of each
  int depth() const;                  // of frames in it, 0 for none
  // Items if frames at this depth are one item.
  int items(int depth) const;
};

// Of the forward, backward and weight sections of a stage.
Outline outline(const Graph& g, int stage, bool fold);

}  // namespace holon::graph
