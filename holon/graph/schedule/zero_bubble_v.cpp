// ZB-V: stages on devices as a V, so that a micro-batch ends on the device on which it began, and the first gradient
// comes back to each device when that has just run out of forwards. https://arxiv.org/abs/2401.10241, section 6, and
// https://arxiv.org/abs/2405.15362
#include <algorithm>
#include <array>

#include "holon/base/error.h"
#include "holon/graph/schedule/runs.h"

namespace holon::graph {

namespace {

std::vector<int> bounds(const Mapping& mapping) {
  const Runs runs(mapping);
  const std::optional<int> p = v_shape(mapping);
  if (!p) return runs.bounds_of_deferred_weights(mapping.micro_batches);
  std::vector<int> bounds = runs.bounds_of_all(mapping.micro_batches);
  for (int& b : bounds) b = std::min(b, 2 * *p);
  return bounds;
}

TaskLists lists(const Mapping& mapping) {
  const std::optional<int> p = v_shape(mapping);
  const Runs runs(mapping);
  if (!mapping.training) return runs.forwards(mapping);
  if (!p) {
    ListRules rules;
    rules.splits_backward = true;
    rules.bounds = bounds(mapping);
    return runs.list_scheduled(mapping, rules);
  }
  // Chunk 0 is on the way down the V, chunk 1 on the way back up. A device may hold 2 p chunks' activations: it fills
  // up with forwards until the first micro-batch has come back, then takes one of each kind in turn.
  TaskLists lists;
  const int m = mapping.micro_batches;
  for (int d = 0; d < *p; ++d) {
    const int behind = *p - d;  // devices from here to the turn
    lists.push_back(spelled(std::array{d, 2 * *p - 1 - d}, m,
                            std::array<Pattern, 8>{{{2 * behind - 1, "F0"},
                                                    {d, "F1 F0"},
                                                    {behind, "F1 B1 W1"},
                                                    {m - *p, "F0 B0 W0 F1 B1 W1"},
                                                    {d, "B0 B1"},  // nothing of W before what others wait for
                                                    {behind, "B0 W0"},
                                                    {m, "W1"},
                                                    {m, "W0"}}}));
  }
  return lists;
}

// For F = B, and at least 2 p - 1 micro-batches. With F = B = W each device is idle for p - 1 forwards, until the first
// micro-batch arrives or after the last one has left, and never in between.
double bubble(const BubbleCase& c) {
  if (c.chunks_per_device != 2 || c.forward != c.backward)
    fail_value("zero_bubble_v: the formula is of 2 chunks per device and of backwards (B) as long as forwards; got {} "
               "chunks, {} and {}. Play the table with simulate() for others.",
               c.chunks_per_device, c.backward, c.forward);
  const int p = c.devices;
  const double idle = (p - 1) * std::max(c.forward, 2 * (c.forward - c.weight)) +
      std::max(0, p - 2) * std::max(0.0, c.weight - c.forward);
  const double all = 2 * c.micro_batches * (c.forward + c.backward + c.weight) + idle;
  return all > 0 ? idle / all : 0;
}

const bool registered = register_scheme({
    .name = "zero_bubble_v",
    .doc = "ZB-V: W deferred, and device d of p has the stages d and 2p - 1 - d",
    .aliases = {"zb-v"},
    .splits_backward = true,
    .lists = lists,
    .in_flight_bounds = bounds,
    .bubble = bubble,
});

}  // namespace

}  // namespace holon::graph
