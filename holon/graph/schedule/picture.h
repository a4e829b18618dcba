// A schedule as a picture.
#pragma once

#include <string>

#include "holon/graph/schedule/simulate.h"

namespace holon::graph {

// An SVG with time to the right and a row for each device: forwards, backwards and W in their colours, later stages
// darker, each with its micro-batch's number, and what it is when pointed at. Errors (ValueError): a simulation of
// another schedule.
std::string schedule_svg(const Schedule& schedule, const Simulation& simulation);

}  // namespace holon::graph
