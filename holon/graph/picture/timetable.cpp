#include "holon/graph/picture/timetable.h"

#include "holon/graph/cost/node_cost.h"
#include "holon/graph/program/program.h"
#include "holon/graph/schedule/picture.h"

namespace holon::graph {

std::string schedule_svg(const Step& step) {
  const Schedule& s = step.program().schedule;
  Costs c = estimate_costs(step.graph());
  for (auto* list : {&c.forward, &c.backward, &c.weight})
    for (double& x : *list) x *= 1e6;
  double all = 0;
  for (size_t i = 0; i < c.forward.size(); ++i) all += c.forward[i] + c.backward[i] + c.weight[i];
  return schedule_svg(s, simulate(s, all > 0 ? c : Costs::equal(s.stages)));
}

std::string schedule_text(const Step& step) { return str(step.program().schedule); }

}  // namespace holon::graph
