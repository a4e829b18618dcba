// The schedule of a compiled step as a picture.
#pragma once

#include <string>

#include "holon/graph/step.h"

namespace holon::graph {

// The table that the step runs, played with what its stages are estimated to take. Times are in microseconds. Alike on
// all ranks.
std::string schedule_svg(const Step& step);
std::string schedule_text(const Step& step);  // a line for each device

}  // namespace holon::graph
