// A greedy list scheduler for mappings of stages to devices that no textbook scheme knows. It plays the pipeline in
// time: a device that is idle takes the first ready task by the scheme's priorities that its bound of activations
// allows.
#pragma once

#include <vector>

#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

struct ListRules {
  bool backward = true;
  bool splits_backward = false;
  bool forwards_first = false;  // GPipe: no backward on a device before all of its forwards
  std::vector<int> bounds;      // by device: most (stage, micro-batch) pairs in flight; at least its number of stages
};

// The lists of tasks by device. lengths: the relative duration of each stage.
// Never gets stuck: a forward of a later micro-batch is held back while it could take the place that the oldest
// unfinished one on that device will need.
std::vector<std::vector<Task>> list_schedule(const std::vector<int>& device_of_stage, int devices,
                                             const std::vector<int>& lengths, int micro_batches,
                                             const ListRules& rules);

}  // namespace holon::graph
