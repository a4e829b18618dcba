// A table as a graph: tasks by number, device after device, and what each waits for. For check and simulate.
#pragma once

#include <vector>

#include "holon/base/index.h"
#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

class TaskGraph {
 public:
  // Errors (ValueError): what check says of single tasks: one that is missing, twice there, elsewhere or out of order.
  explicit TaskGraph(const Schedule& schedule);

  int size() const { return static_cast<int>(tasks_.size()); }
  const Task& task(int id) const { return at_index(tasks_, id); }
  int device(int id) const { return at_index(device_of_stage_, task(id).stage); }
  int first(size_t device) const {
    return first_[device];
  }  // number of the device's first task; first(devices) is size()

  int before(int id) const;                // the task before it on its device, or -1
  std::vector<int> inputs(int id) const;   // the tasks whose results it needs
  std::vector<int> outputs(int id) const;  // the tasks that need its result
  int sender(int id) const;                // the task on another device whose result it needs, or -1
  int receiver(int id) const;              // the task on another device that needs its result, or -1
  std::vector<int> order() const;          // an order in which all can run; shorter than size() if there is a cycle

 private:
  int find(int stage, int micro_batch, Phase phase) const;  // -1 where the schedule has no such task

  int stages_, micro_batches_;
  std::vector<int> device_of_stage_, first_, number_;
  std::vector<Task> tasks_;
};

}  // namespace holon::graph
