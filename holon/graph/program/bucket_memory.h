// Values that are redistributed by one collective: they are next to each other from the start, and on a rank with time
// to spare the collective runs in the background until the first of its results is read.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "holon/graph/program/instructions.h"
#include "holon/graph/program/lowered_values.h"

namespace holon::graph {

class BucketMemory {
 public:
  // background: collectives run on the rank's second thread.
  BucketMemory(LoweredValues& values, bool background);

  bool has_place(ValueId v) const { return places_.contains(v); }
  // Memory for the value: its place in a bucket, where the strides allow it, or a buffer of its own.
  Array* fresh(ValueId v, int m, const Dims& shape, const Dims& strides);
  // The boxing of several values.
  void lower(const Node& n, int m);
  // Before v is read: the collective that makes it is waited for.
  void need(ValueId v, int m);

 private:
  struct Bucket {
    boxing::PreparedBatch batch;
    int32_t buffer = -1;
  };
  Bucket& bucket(const Node& n, int m);

  LoweredValues& values_;
  const Graph& g_;
  const bool background_;
  std::unordered_map<ValueId, std::pair<const Node*, size_t>> places_;
  std::map<std::pair<const Node*, int>, std::unique_ptr<Bucket>> buckets_;
  std::unordered_map<ValueId, const SumInBackground*> summing_;
  std::unordered_map<const SumInBackground*, int32_t> summed_from_;  // buffers
};

}  // namespace holon::graph
