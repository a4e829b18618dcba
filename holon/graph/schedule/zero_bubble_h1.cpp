// ZB-H1: 1F1B whose gradients of weights (W) are deferred. https://arxiv.org/abs/2401.10241
#include <algorithm>

#include "holon/graph/schedule/runs.h"
#include "holon/graph/schedule/textbooks.h"

namespace holon::graph {

namespace {

std::vector<int> bounds(const Mapping& mapping) {
  return Runs(mapping).bounds_of_deferred_weights(mapping.micro_batches);
}

// At position s of p. A stage's first W waits until it holds as many micro-batches as it may: p where stages are equal.
std::vector<Task> list_of(int s, int p, int bound, int micro_batches) {
  std::vector<Task> list;
  int forwards = 0, backwards = 0, weights = 0;
  auto add = [&](int& next, Phase phase) { list.push_back({s, next++, phase}); };
  while (forwards < std::min(p - s, micro_batches)) add(forwards, Phase::kForward);
  while (backwards < micro_batches) {
    add(backwards, Phase::kBackward);
    if (forwards - weights == bound || forwards == micro_batches) add(weights, Phase::kWeight);
    if (forwards < micro_batches) add(forwards, Phase::kForward);
  }
  while (weights < micro_batches) add(weights, Phase::kWeight);
  return list;
}

TaskLists lists(const Mapping& mapping) {
  const Runs runs(mapping);
  if (!mapping.training) return runs.forwards(mapping);
  const std::vector<int> most = bounds(mapping);
  if (!runs.one_each()) {
    ListRules rules;
    rules.splits_backward = true;
    rules.bounds = most;
    return runs.list_scheduled(mapping, rules);
  }
  TaskLists lists(to_size(mapping.devices));
  for (int r = 0; r < runs.size(); ++r)
    at_index(lists, runs.device(r)) = list_of(r, runs.size(), at_index(most, runs.device(r)), mapping.micro_batches);
  return runs.in_stages(lists);
}

double bubble(const BubbleCase& c) {
  // W fill the idle time of 1F1B except one of F and B at least, along which the micro-batches enter or leave.
  const double idle = (c.devices - 1) * std::max({c.forward + c.backward - c.weight, c.forward, c.backward}),
               all = c.micro_batches * (c.forward + c.backward + c.weight) + idle;
  return all > 0 ? idle / all : 0;
}

const bool registered = register_scheme({
    .name = "zero_bubble",
    .doc = "ZB-H1: gradients of weights (W) are deferred to fill idle time",
    .aliases = {"zb-h1"},
    .splits_backward = true,
    .automatic = true,
    .lists = lists,
    .in_flight_bounds = bounds,
    .bubble = bubble,
});

}  // namespace

Schedule zero_bubble_h1(int stages, int micro_batches) {
  return make_schedule("zero_bubble_h1", *find_scheme("zero_bubble_h1", "zero_bubble"),
                       in_turn("zero_bubble_h1", stages, stages, micro_batches), micro_batches, true);
}

}  // namespace holon::graph
