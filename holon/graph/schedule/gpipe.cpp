// GPipe: all forwards, then all backwards.
#include "holon/graph/schedule/runs.h"
#include "holon/graph/schedule/textbooks.h"

namespace holon::graph {

namespace {

std::vector<int> bounds(const Mapping& mapping) { return Runs(mapping).bounds_of_all(mapping.micro_batches); }

TaskLists lists(const Mapping& mapping) {
  const Runs runs(mapping);
  if (!runs.one_each()) {
    ListRules rules;
    rules.forwards_first = true;
    rules.bounds = bounds(mapping);
    return runs.list_scheduled(mapping, rules);
  }
  TaskLists lists(to_size(mapping.devices));
  const int m = mapping.micro_batches;
  for (int r = 0; r < runs.size(); ++r)
    at_index(lists, runs.device(r)) = spelled({{r}}, m, {{{m, "F0"}, {mapping.training ? m : 0, "B0"}}});
  return runs.in_stages(lists);
}

double bubble(const BubbleCase& c) { return (c.devices - 1.0) / (c.micro_batches + c.devices - 1.0); }

const bool registered = register_scheme({
    .name = "gpipe",
    .doc = "all forwards, then all backwards",
    .lists = lists,
    .in_flight_bounds = bounds,
    .bubble = bubble,
});

}  // namespace

Schedule gpipe(int stages, int micro_batches, bool training) {
  return make_schedule("gpipe", *find_scheme("gpipe", "gpipe"), in_turn("gpipe", stages, stages, micro_batches),
                       micro_batches, training);
}

}  // namespace holon::graph
