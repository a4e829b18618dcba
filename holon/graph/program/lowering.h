// Lowering: from a graph to the instructions of one rank.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/comm/background.h"
#include "holon/graph/program/instructions.h"
#include "holon/graph/program/pipeline.h"
#include "holon/graph/program/program.h"
#include "holon/graph/program/row_order.h"
#include "holon/graph/program/value_strides.h"
#include "holon/kernels/copy.h"

namespace holon::graph {

// What an absent operand is.
inline const Array kUndefined{};

// One use: makes the program of the current rank. Values become instances (one, or one per micro-batch), instances
// windows on buffers, and buffers live from the instruction that makes them to the last that reads them.
class Lowering {
 public:
  Lowering(const Graph& g, const LoweringOptions& options)
      : g_(g),
        made_by_(producers(g)),
        rank_(Context::current().rank()),
        strides_(g, rank_),
        order_(g, rank_),
        pipeline_(g, options.schedule, rank_),
        background_(options.background) {}

  std::unique_ptr<Program> run();

  // Makes the instructions of a node of one kind for a micro-batch.
  using LowerKind = void (Lowering::*)(const Node& n, int m);
  void lower_op(const Node& n, int m);
  void lower_boxing(const Node& n, int m);
  void lower_relabel(const Node& n, int m);
  void lower_agree(const Node& n, int m);
  void lower_accumulate(const Node& n, int m);
  void lower_assign(const Node& n, int m);
  void lower_update(const Node& n, int m);
  void lower_clip(const Node& n, int m);
  void lower_fused(const Node& n, int m);

 private:
  struct Instance {
    int32_t array = -1, buffer = -1;
  };

  // A transfer whose memory is not free yet.
  struct Sent {
    boxing::PointToPoint* transfer;
    NodeId node;
    int micro_batch;
    std::vector<int32_t> held;  // buffers
  };

  // What the rank does, by section and stage.
  void sort_nodes();
  bool member(ValueId v) const {
    auto* spec = g_.value(v).spec;
    return !spec || spec->placement.contains(rank_);
  }
  bool takes_part(const Node& n) const;
  Instance& instance(ValueId v, int m) {
    return at_index(instances_, at_index(first_, v) + (at_index(per_micro_, v) ? m : 0));
  }
  const Array* array(ValueId v, int m) {
    if (v == kNoValue) return &kUndefined;
    Instance& i = instance(v, m);
    return i.array < 0 ? &kUndefined : &at_index(p_->arrays, i.array);
  }

  // The nodes of a section for a micro-batch, in a stage.
  std::vector<NodeId>& list(Section section, int stage, int variant) {
    const bool often = per_micro_batch(section);
    return at_index(at_index(lists_, section), often ? variant * stages_ + stage : 0);
  }
  bool runs_for(const Node& n, int m) const { return !per_micro_batch(n.section) || n.variant == g_.variant(m); }

  // How often one instance of each value is read here.
  void count_reads();
  int32_t now() const { return static_cast<int32_t>(p_->instructions.size()); }
  int32_t new_buffer(size_t bytes, Device device, Buffer::Kind kind = Buffer::Kind::kArena);
  Array* keep(Array a) {
    p_->arrays.push_back(std::move(a));
    return &p_->arrays.back();
  }
  Array* set(ValueId v, int m, Array a, int32_t buffer);

  // An array with its own memory for the value.
  Array* fresh(ValueId v, int m, const Dims& shape, const Dims& strides);
  static Device device_of(const Value& v) { return v.spec ? v.spec->placement.device() : v.device; }
  Dims local_shape(const Value& v) const {
    if (!v.spec) return v.shape;
    return slice_of(v.shape, v.spec->placement, v.spec->nd_sbp, v.spec->placement.index_of(rank_)).shape;
  }
  template <class T, class... Args>
  T& emit(const Node* n, int m, Args&&... args) {
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    made->node = n ? static_cast<int32_t>(n - g_.nodes.data()) : -1;
    made->micro_batch = static_cast<int16_t>(m);
    T& ref = *made;
    p_->instructions.push_back(std::move(made));
    return ref;
  }
  void read_done(ValueId v, int m) {
    if (v == kNoValue) return;
    Instance& i = instance(v, m);
    if (i.buffer < 0) return;
    Buffer& b = at_index(p_->buffers, i.buffer);
    --b.pending;
    b.read_in |= static_cast<uint8_t>(1u << static_cast<unsigned>(section_));
    b.life.last = std::max(b.life.first, now() - 1);
  }
  bool first_task_of(int m) const;

  // What stages need of inputs and parameters that other ranks hold.
  void send_outside(int m);

  // The object of a boxing between stages for one micro-batch. Objects of all nodes and micro-batches differ in
  // their channel.
  boxing::PointToPoint& transfer(NodeId n, int m, const Array* in);
  std::vector<Array> scratch_of(std::span<const size_t> sizes, Device device, std::vector<int32_t>* held = nullptr);
  void send(NodeId n, int m);
  void receive(NodeId n, int m);
  void release(const Sent& sent);

  // Gradients that one collective sums are next to each other from the start.
  void find_buckets();
  struct Bucket {
    boxing::PreparedBatch batch;
    int32_t buffer = -1;
  };
  Bucket& bucket(const Node& n, int m);

  // A window on the memory of a bucket.
  Array part_of(int32_t buffer, const Dims& shape, int64_t at, DType dtype, Device device);
  void lower_batch(const Node& n, int m);
  void bind_outside();
  void bind_input(size_t i);
  void run_section(Section section, int stage, int m);

  // Before v is read: what is on its way is waited for.
  void need(ValueId v, int m);

  // After v was made: stages that wait for it get it.
  void made(ValueId v, int m);
  void lower(const Node& n, int m);

  // Whether all that the op gives is only added up over micro-batches, and its kernel may do that.
  bool sums_can_be_added_to(const Node& n, int m, std::span<const Dims> shapes);
  // The value in the memory of its sum over micro-batches.
  Array* in_sum(ValueId v, int m);

  // Output o over one of the given inputs that nobody reads any more, which is received out of them; else nullptr.
  Array* in_place_of_input(const Node& n, int m, size_t o, const Dims& shape, const Dims& strides, uint32_t& inputs);

  // Output o in the memory of input i, where that is read for the last time. Pre: the kernel may do that.
  Array* over_input(const Node& n, int m, size_t i, size_t o, const Dims& shape, const Dims& strides);
  void lower_view(const Node& n, int m, const Array& in, const Dims& shape);

  // Whether gradients are changed between backward and the updates: divided by the loss scale, or clipped. That
  // begins when all of them are there.
  bool changes_gradients() const { return g_.scaled || !g_.clips.empty(); }
  void put_updates_last();
  void own_gradients();
  // Whether nothing else lies where v does, or will be read there.
  bool may_change(ValueId v);

  // This rank's part under `to` in its part under `from`, which holds it.
  Array window(const Array& a, const Dims& shape, const GlobalSpec* from, const GlobalSpec* to) const;

  // Outputs that are there for the micro-batch. last: what is not there does not come.
  void put_out(int m, bool last = false);

  // Whether the micro-batches' values of an output are rows of one tensor.
  bool joins(size_t o) const;
  // That the rows of an output can come in the batch's order.
  void check_row_order(size_t o) const;
  // What is before the micro-batch's rows along an output's first axis: of the whole tensor or this rank's part.
  int64_t rows_before(size_t o, int m, bool local) const;
  ValueId output(size_t o, int m) const { return g_.outputs_of(g_.variant(m))[o]; }
  void describe_output(size_t o);
  static Dims with_leading(int64_t n, const Dims& shape);

  // The same layout behind a new first axis.
  static const GlobalSpec* shifted(const GlobalSpec* spec);

  // Outputs of one instance are in memory that the step allocates for them: the value's own where it fills its buffer.
  void finish_outputs();
  void place();
  const Graph& g_;
  std::vector<NodeId> made_by_;
  const int rank_;
  const ValueStrides strides_;
  const RowOrder order_;
  Pipeline pipeline_;
  int micro_ = 1, stages_ = 1, task_ = 0;
  Section section_ = Section::kOnceBefore;
  const bool background_;
  std::unique_ptr<Program> p_;
  std::array<std::vector<std::vector<NodeId>>, 5> lists_;  // by section; then variant and stage
  std::vector<bool> per_micro_;
  std::vector<int64_t> first_;  // of each value's instances
  std::vector<Instance> instances_;
  std::vector<int64_t> reads_;
  std::unordered_map<ValueId, ValueId> sum_of_;  // of a value that is only added up over micro-batches
  std::vector<bool> out_done_;
  std::map<ValueId, std::vector<NodeId>> crossings_from_;
  std::unordered_map<ValueId, NodeId> crossing_to_;
  // Counted over all crossings of the graph, so that the steps of a program share channels, of which a world has a
  // number.
  std::unordered_map<NodeId, int> crossing_number_;
  std::map<std::pair<NodeId, int>, boxing::PointToPoint*> transfers_;
  std::vector<std::vector<Sent>> releases_;  // after each task
  std::vector<Sent> releases_at_end_;
  std::unordered_map<ValueId, std::pair<const Node*, size_t>> place_in_bucket_;
  std::map<std::pair<const Node*, int>, std::unique_ptr<Bucket>> buckets_;
  struct OwnGradient {
    const Array* array;
    int32_t buffer;  // -1: that of the value
    const Value* value;
  };
  std::map<GradClip::Of, OwnGradient> own_gradients_;  // that may be changed, of the updates' slots
  std::unordered_map<ValueId, const SumInBackground*> summing_;
  std::unordered_map<const SumInBackground*, int32_t> summed_from_;  // buffers
};

}  // namespace holon::graph
