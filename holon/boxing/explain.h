// A plan for people: in words (explain in planner.h), or to be drawn.
#pragma once

#include <string>
#include <vector>

#include "holon/boxing/planner.h"

namespace holon::boxing {

struct Explanation {
  Plan plan;
  std::string text;
};

// Who reads how much of whom: "0->1, 1->0: 24 bytes; 2->1: 12 bytes", or sums where there are many.
std::string links_text(const std::vector<Link>& links);

// The plan from here on, as far as this rank can know it. Not collective.
Explanation explanation(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

}  // namespace holon::boxing
