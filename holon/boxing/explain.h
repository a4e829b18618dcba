// A plan for people: in words (explain in planner.h), or to be drawn.
#pragma once

#include <string>

#include "holon/boxing/planner.h"

namespace holon::boxing {

struct Explanation {
  Plan plan;
  std::string text;
};

// The plan from here on, as far as this rank can know it. Not collective.
Explanation explanation(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype);

}  // namespace holon::boxing
