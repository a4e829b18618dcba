// The graph's values on this rank, while it is lowered: instances (one, or one per micro-batch), which are windows on
// buffers, and the instructions that make and read them. A buffer lives from the instruction that makes it to the last
// that reads it.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/graph/program/program.h"

namespace holon::graph {

// What an absent operand is.
inline const Array kUndefined{};

class LoweredValues {
 public:
  struct Instance {
    int32_t array = -1, buffer = -1;
  };

  LoweredValues(const Graph& g, Program& program);

  const Graph& g;
  Program& program;
  const int rank;
  const int micro_batches;
  const std::vector<NodeId> made_by;
  Section section = Section::kOnceBefore;  // whose instructions are being made

  bool member(ValueId v) const {
    auto* spec = g.value(v).spec;
    return !spec || spec->placement.contains(rank);
  }
  // Whether the rank has anything to do with the node.
  bool takes_part(const Node& n) const;
  bool runs_for(const Node& n, int m) const { return !per_micro_batch(n.section) || n.variant == g.variant(m); }
  bool per_micro(ValueId v) const { return at_index(per_micro_, v); }
  // How often one instance of the value is read here.
  int64_t reads(ValueId v) const { return at_index(reads_, v); }

  Instance& instance(ValueId v, int m) {
    return at_index(instances_, at_index(first_, v) + (at_index(per_micro_, v) ? m : 0));
  }
  Buffer& buffer(int32_t b) { return at_index(program.buffers, b); }
  Buffer& buffer_of(ValueId v, int m) { return buffer(instance(v, m).buffer); }
  const Array* array(ValueId v, int m) {
    if (v == kNoValue) return &kUndefined;
    Instance& i = instance(v, m);
    return i.array < 0 ? &kUndefined : &at_index(program.arrays, i.array);
  }
  static Device device_of(const Value& v) { return v.spec ? v.spec->placement.device() : v.device; }
  Dims local_shape(const Value& v) const {
    if (!v.spec) return v.shape;
    return region_of(v.shape, v.spec->placement, v.spec->nd_sbp, v.spec->placement.index_of(rank)).shape;
  }

  int32_t new_buffer(size_t bytes, Device device, Buffer::Kind kind = Buffer::Kind::kArena);
  // Keeps an array that belongs to no value for instructions to refer to.
  Array* keep(Array a) {
    program.arrays.push_back(std::move(a));
    return &program.arrays.back();
  }
  // The value is in this window. Pre: it has none yet.
  Array* set(ValueId v, int m, Array a, int32_t buffer);
  // The value is in a buffer of its own.
  Array* in_own_buffer(ValueId v, int m, const Dims& shape, const Dims& strides);
  // A contiguous window on a buffer.
  Array window_on(int32_t buffer, const Dims& shape, int64_t at, DType dtype, Device device);
  // held: the numbers of their buffers, or nullptr.
  std::vector<Array> scratch_of(std::span<const size_t> sizes, Device device, std::vector<int32_t>* held = nullptr);

  int32_t now() const { return static_cast<int32_t>(program.instructions.size()); }
  template <class T, class... Args>
  T& emit(const Node* n, int m, Args&&... args) {
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    made->node = n ? static_cast<int32_t>(n - g.nodes.data()) : -1;
    made->micro_batch = static_cast<int16_t>(m);
    T& ref = *made;
    program.instructions.push_back(std::move(made));
    return ref;
  }
  // The last instruction was one of the reads.
  void read_done(ValueId v, int m);

  // The buffers' places in the arenas. After the last instruction.
  void place();

 private:
  void count_reads();

  std::vector<bool> per_micro_;
  std::vector<int64_t> first_;  // of each value's instances
  std::vector<Instance> instances_;
  std::vector<int64_t> reads_;
};

}  // namespace holon::graph
