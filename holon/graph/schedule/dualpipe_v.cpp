// DualPipe cut in half: micro-batches go down one side of a V of stages while others come back up the other, so that a
// device always has a forward of one direction to put next to a backward of the other. The V has one copy of the
// parameters, where the pipeline in both directions has two. https://arxiv.org/abs/2412.19437
#include <algorithm>
#include <array>
#include <string>

#include "holon/base/error.h"
#include "holon/graph/schedule/runs.h"

namespace holon::graph {

namespace {

// Enough micro-batches for both directions to be full at once.
std::optional<int> full_v(const Mapping& mapping) {
  const std::optional<int> p = v_shape(mapping);
  return p && mapping.micro_batches >= 2 * *p ? p : std::nullopt;
}

std::vector<int> bounds(const Mapping& mapping) {
  const Runs runs(mapping);
  const std::optional<int> p = full_v(mapping);
  if (!p) return runs.bounds_of_deferred_weights(mapping.micro_batches);
  std::vector<int> bounds = runs.bounds_of_all(mapping.micro_batches);
  for (int& b : bounds) b = std::min(b, 2 * *p + 1);
  return bounds;
}

// The last tasks of device d of p: backwards of both chunks in turn, then those of chunk 0 that the devices behind have
// still to pass on. W of the first half follow at once; the others wait for a place where the device would be idle.
std::string drain(int d, int p) {
  std::string list;
  std::vector<const char*> waiting;
  for (int i = 0; i < 2 * (d + 1); ++i) {
    const char* const tasks[] = {"B1 ", "W1 ", "B0 ", "W0 "};
    list += tasks[2 * (i % 2)];
    if (i <= d)
      list += tasks[2 * (i % 2) + 1];
    else
      waiting.push_back(tasks[2 * (i % 2) + 1]);
  }
  size_t next = 0;
  for (int i = 0; i < p - 1 - d; ++i) {
    list += waiting[next++];
    list += "B0 ";
    waiting.push_back("W0 ");
  }
  while (next < waiting.size()) list += waiting[next++];
  return list;
}

TaskLists lists(const Mapping& mapping) {
  const Runs runs(mapping);
  if (!mapping.training) return runs.forwards(mapping);
  const std::optional<int> p = full_v(mapping);
  if (!p) {
    ListRules rules;
    rules.splits_backward = true;
    rules.bounds = bounds(mapping);
    return runs.list_scheduled(mapping, rules);
  }
  TaskLists lists;
  const int m = mapping.micro_batches;
  for (int d = 0; d < *p; ++d) {
    const int behind = *p - 1 - d;
    const std::string last = drain(d, *p);
    lists.push_back(spelled(std::array{d, 2 * *p - 1 - d}, m,
                            std::array<Pattern, 6>{{{2 * behind, "F0"},
                                                    {d + 1, "F0 F1"},
                                                    {behind, "B1 W1 F1"},
                                                    {m - 2 * *p + d + 1, "F0 B1 W1 F1 B0 W0"},
                                                    {behind, "B1 W1 F1 B0 W0"},
                                                    {1, last.c_str()}}}));
  }
  return lists;
}

// For F = B, and at least 2 p micro-batches. A gradient is sent before W, so that less is idle than with the backwards
// as a whole, of which the paper's formula is.
double bubble(const BubbleCase& c) {
  if (c.chunks_per_device != 2 || c.forward != c.backward)
    fail_value("dualpipe_v: the formula is of 2 chunks per device and of backwards (B) as long as forwards; got {} "
               "chunks, {} and {}. Play the table with simulate() for others.",
               c.chunks_per_device, c.backward, c.forward);
  const double idle = (c.devices - 1) * std::max(c.forward + c.backward - c.weight, c.forward),
               all = 2 * c.micro_batches * (c.forward + c.backward + c.weight) + idle;
  return all > 0 ? idle / all : 0;
}

const bool registered = register_scheme({
    .name = "dualpipe_v",
    .doc = "DualPipe cut in half: both directions of a V of stages at once",
    .splits_backward = true,
    .lists = lists,
    .in_flight_bounds = bounds,
    .bubble = bubble,
});

}  // namespace

}  // namespace holon::graph
