// Gradients between backward and the updates: divided by the loss scale and clipped, in memory that nobody else reads.
// That begins when all of them are there.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "holon/graph/program/instructions.h"
#include "holon/graph/program/lowered_values.h"

namespace holon::graph {

class GradientChanges {
 public:
  // updates: the nodes that run once after the micro-batches. need: called before a value is read.
  GradientChanges(LoweredValues& values, std::function<void(ValueId)> need)
      : values_(values), g_(values.g), need_(std::move(need)) {}

  // Whether there is anything to change.
  bool any() const { return g_.scaled || !g_.clips.empty(); }
  // Before the first clip or update.
  void begin(std::span<const NodeId> once_after);
  void clip(const Node& n, Array* out);
  // Where the factor is that slot i of an update multiplies its gradient by; undefined: none. Of a gradient on a device
  // that is clipped by one norm only, which saves a pass.
  Array scale_of(const Node& update, size_t i) const;
  // The gradient that slot i of an update takes, whose memory then is free; nullptr: the value's own.
  const Array* taken(const Node& update, size_t i, bool idle);

 private:
  struct OwnGradient {
    const Array* array;
    int32_t buffer;  // -1: that of the value
    const Value* value;
  };
  // Whether nothing else is where v is, or will be read there.
  bool may_change(ValueId v);
  // Which clips change each gradient, by number, and where they are clipped.
  void find_clips();
  bool scaled_by_its_update(const GradClip::Of& at) const;

  LoweredValues& values_;
  const Graph& g_;
  std::function<void(ValueId)> need_;
  bool begun_ = false;
  std::map<GradClip::Of, OwnGradient> own_;            // of the updates' slots
  std::map<GradClip::Of, std::vector<size_t>> clips_;  // of those
  std::vector<Array> results_;                         // of each clip by norm: Program::norms
};

}  // namespace holon::graph
