// 1F1B, and what it is called where devices have several stages in turn: interleaved 1F1B.
#include <algorithm>

#include "holon/base/error.h"
#include "holon/graph/schedule/runs.h"
#include "holon/graph/schedule/textbooks.h"

namespace holon::graph {

namespace {

// One device's list at position r of p, with v stages: r, r + p, ... With v > 1 the micro-batches, a multiple of p, go
// in rounds of p: a device runs its first stage for all of a round, then the next.
std::vector<Task> list_of(int r, int p, int v, int micro_batches) {
  const int round = v == 1 ? 1 : p, all = micro_batches * v;
  const int warm_up = std::min(all, v == 1 ? p - 1 - r : (v - 1) * p + 2 * (p - 1 - r));
  std::vector<Task> list;
  auto add = [&](int i, Phase phase) {
    const int chunk = i % (round * v) / round, micro_batch = i / (round * v) * round + i % round;
    list.push_back({(phase == Phase::kForward ? chunk : v - 1 - chunk) * p + r, micro_batch, phase});
  };
  for (int i = 0; i < all + warm_up; ++i) {
    if (i < all) add(i, Phase::kForward);
    if (i >= warm_up) add(i - warm_up, Phase::kBackward);
  }
  return list;
}

std::vector<int> bounds(const Mapping& mapping) { return Runs(mapping).bounds_of_1f1b(mapping.micro_batches); }

TaskLists lists(const Mapping& mapping) {
  const Runs runs(mapping);
  if (!mapping.training) return runs.forwards(mapping);
  const std::optional<int> period = runs.period();
  if (!runs.one_each() && !(period && mapping.micro_batches % *period == 0)) {
    ListRules rules;
    rules.bounds = bounds(mapping);
    return runs.list_scheduled(mapping, rules);
  }
  TaskLists lists(to_size(mapping.devices));
  for (int r = 0; r < *period; ++r)
    at_index(lists, runs.device(r)) = list_of(r, *period, runs.size() / *period, mapping.micro_batches);
  return runs.in_stages(lists);
}

const bool registered = register_scheme({
    .name = "1f1b",
    .doc = "a forward and a backward in turn",
    .automatic = true,
    .lists = lists,
    .in_flight_bounds = bounds,
    .bubble = [](const BubbleCase& c) { return (c.devices - 1.0) / (c.micro_batches + c.devices - 1.0); },
});

// The mapping makes it interleaved, so that it differs from 1F1B in its name and its formula only.
const bool interleaved_registered = register_scheme({
    .name = "interleaved",
    .doc = "1f1b with several stages on each device, in turn",
    .lists = lists,
    .in_flight_bounds = bounds,
    .bubble =
        [](const BubbleCase& c) {
          return (c.devices - 1.0) / (static_cast<double>(c.chunks_per_device) * c.micro_batches + c.devices - 1.0);
        },
});

}  // namespace

Schedule one_f_one_b(int stages, int micro_batches, bool training) {
  return make_schedule("one_f_one_b", *find_scheme("one_f_one_b", "1f1b"),
                       in_turn("one_f_one_b", stages, stages, micro_batches), micro_batches, training);
}

Schedule interleaved_1f1b(int devices, int chunks_per_device, int micro_batches) {
  if (devices < 1 || chunks_per_device < 1)
    fail_value("interleaved_1f1b: needs at least 1 device and 1 chunk per device; got {} and {}.", devices,
               chunks_per_device);
  return make_schedule("interleaved_1f1b", *find_scheme("interleaved_1f1b", "interleaved"),
                       in_turn("interleaved_1f1b", devices, int64_t{devices} * chunks_per_device, micro_batches),
                       micro_batches, true);
}

}  // namespace holon::graph
