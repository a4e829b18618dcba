// What schemes are made of: runs of consecutive stages on one device, bounds of activations in flight, and lists that
// are written as repeated patterns.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "holon/base/index.h"
#include "holon/graph/schedule/list_scheduler.h"
#include "holon/graph/schedule/scheme.h"

namespace holon::graph {

// Runs of consecutive stages on one device: between them nothing is sent, so that most schemes treat a run as a stage.
class Runs {
 public:
  explicit Runs(const Mapping& mapping);

  int size() const { return static_cast<int>(device_.size()); }
  int devices() const { return devices_; }
  int device(int run) const { return at_index(device_, run); }
  int length(int run) const { return at_index(first_, run + 1) - at_index(first_, run); }  // in stages
  // The number of devices when they come in the same order again and again, a whole number of times.
  std::optional<int> period() const;
  bool one_each() const { return period() == size(); }  // a plain pipeline: no device has two

  // Lists whose stages are runs, with each run's stages one after the other.
  TaskLists in_stages(const TaskLists& lists) const;
  // The list scheduler's lists, in stages.
  TaskLists list_scheduled(const Mapping& mapping, ListRules rules) const;
  // Forwards alone, as early as they can run, in stages.
  TaskLists forwards(const Mapping& mapping) const;

  // The bounds of in_flight_bounds(). 1F1B's, for any mapping: as many forwards as a device has time for until the
  // first backward comes back to it.
  std::vector<int> bounds_of_1f1b(int micro_batches) const;
  // W may wait while no device holds more stages than 1F1B's fullest one.
  std::vector<int> bounds_of_deferred_weights(int micro_batches) const;
  std::vector<int> bounds_of_all(int micro_batches) const;

 private:
  std::vector<int> counts() const;                // runs by device
  std::vector<int> until_first_backward() const;  // 1F1B's bounds for any number of micro-batches
  std::vector<int> capped(std::vector<int> bounds, int micro_batches) const;  // by all that there is
  std::vector<int> device_, first_;  // by run; first_ ends with the number of stages
  int devices_ = 0;
};

// The number of devices p, where device d of p has the stages d and 2 p - 1 - d and no others: a V.
std::optional<int> v_shape(const Mapping& mapping);

// "F0 B1 W1": tasks of one device, each with a phase and the number of one of its chunks. So often in a row.
struct Pattern {
  int times = 0;
  const char* tasks = "";
};
// The list that the patterns spell one after the other; chunks: the stage of each. Tasks of a chunk and a phase count
// the micro-batches up, and those beyond the last one are left out.
std::vector<Task> spelled(std::span<const int> chunks, int micro_batches, std::span<const Pattern> patterns);

}  // namespace holon::graph
