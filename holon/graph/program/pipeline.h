// In which order a rank runs the parts of a step, and what crosses from one stage to another meanwhile.
#pragma once

#include <string>
#include <vector>

#include "holon/base/index.h"
#include "holon/graph/ir/graph.h"
#include "holon/graph/schedule/schedule.h"

namespace holon::graph {

// What of a step a task of the schedule is.
Section section_of(Phase phase);

// The table of a graph's tasks by the scheme of this name, or as kAutoSchedule chooses; the same on every rank. Stages
// whose ranks overlap share a device. Errors (ValueError): no scheme has the name; what make_schedule() says of its
// table.
Schedule schedule_of(const Graph& g, const std::string& name);

class Pipeline {
 public:
  // For the given rank. schedule: that of schedule_of() for the graph.
  Pipeline(const Graph& g, Schedule schedule, int rank);

  const std::vector<Task>& tasks() const { return tasks_; }  // of this rank
  const Schedule& schedule() const { return schedule_; }
  int device() const { return device_; }  // of this rank; -1: it has no stage

  // A boxing from stage to stage, for each micro-batch.
  bool crosses(NodeId n) const { return at_index(crosses_, n); }
  // The place in tasks() after which a transfer that this rank sent in tasks()[sent] has certainly been received,
  // since what the task received was sent later by that receiver; -1: none.
  int received_after(NodeId crossing, int micro_batch, int sent) const;

 private:
  struct Edge {
    int from_stage, to_stage;
    Phase from, to;
    int8_t variant = 0;  // of the micro-batches that it serves
  };
  int place_of(int device, const Task& t) const;

  Schedule schedule_;
  int device_ = -1;
  std::vector<Task> tasks_;
  std::vector<bool> crosses_;
  std::vector<Edge> edges_;              // one for each pair, of each variant
  std::vector<Edge> edge_of_;            // of each crossing node
  std::vector<int8_t> variant_of_;       // of each micro-batch; empty: 0
  std::vector<std::vector<int>> place_;  // of each device: (stage, micro-batch, phase) -> place in its list
};

}  // namespace holon::graph
