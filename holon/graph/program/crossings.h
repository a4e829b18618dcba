// What crosses from stage to stage: sends as soon as a value is made, receives right before it is read, and releases of
// the sender's memory after a task by which the receiver has certainly received it.
#pragma once

#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/graph/program/bucket_memory.h"
#include "holon/graph/program/pipeline.h"

namespace holon::graph {

class Crossings {
 public:
  Crossings(LoweredValues& values, BucketMemory& memory, const Pipeline& pipeline);

  // Whether the node is one, which is not lowered in its place.
  bool crosses(NodeId n) const { return g_.stages > 1 && pipeline_.crosses(n); }

  // A task of the rank begins: what stages need of inputs and parameters that other ranks hold is sent with the first
  // one of a micro-batch.
  void begin_task(int task);
  void end_task();
  void end_of_tasks();  // what is sent from here on is released by release_rest()
  void release_rest();
  // Before v is read: it is received.
  void need(ValueId v, int m);
  // After v was made: stages that wait for it get it.
  void made(ValueId v, int m);

 private:
  // A transfer whose memory is not free yet.
  struct Sent {
    boxing::PointToPoint* transfer;
    NodeId node;
    int micro_batch;
    std::vector<int32_t> held;  // buffers
  };
  // The object of a boxing between stages for one micro-batch. Objects of all nodes and micro-batches differ in their
  // channel.
  boxing::PointToPoint& transfer(NodeId n, int m, const Array* in);
  void send(NodeId n, int m);
  void receive(NodeId n, int m);
  void release(const Sent& sent);

  LoweredValues& values_;
  BucketMemory& memory_;
  const Pipeline& pipeline_;
  const Graph& g_;
  int task_ = 0;
  std::vector<bool> begun_;  // of each micro-batch
  std::map<ValueId, std::vector<NodeId>> from_;
  std::unordered_map<ValueId, NodeId> to_;
  // Counted over all crossings of the graph, so that the steps of a program share channels, of which a world has a
  // number.
  std::unordered_map<NodeId, int> number_;
  std::map<std::pair<NodeId, int>, boxing::PointToPoint*> transfers_;
  std::vector<std::vector<Sent>> releases_;  // after each task
  std::vector<Sent> releases_at_end_;
};

}  // namespace holon::graph
