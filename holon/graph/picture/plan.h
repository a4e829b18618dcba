// A graph as a picture: what a step computes, where, and what moves.
#pragma once

#include <string>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

struct PlotOptions {
  std::string title;
  int most_items =
      90;  // of a column: deep modules become one item until no column has more, or only the outermost are left
  bool fold = true;  // modules that follow each other and are alike are drawn once, with their number
};

// An SVG with stages as columns from left to right and modules as frames in each other. Forward runs down in the left
// lane of a column, backward runs up in the right one next to it; what happens once per step is above and below.
// Items name their op and the parameters that it reads, with the type and sbp of what they make. Boxings are coloured
// by what the planner chose and say how many bytes a rank reads at most. Deterministic, and alike on all ranks.
std::string plan_svg(const Graph& g, const PlotOptions& options = {});

}  // namespace holon::graph
