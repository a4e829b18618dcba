// Lowering: from a graph to the instructions of one rank. This class goes through the rank's tasks and knows the kinds
// of nodes; what it makes is kept by others: values and buffers (lowered_values.h), collectives over several values
// (bucket_memory.h), what crosses between stages (crossings.h), gradients on their way to the updates
// (gradient_changes.h), and outputs (outputs.h).
#pragma once

#include <array>
#include <memory>
#include <unordered_map>
#include <vector>

#include "holon/graph/ir/node_kind.h"
#include "holon/graph/program/bucket_memory.h"
#include "holon/graph/program/crossings.h"
#include "holon/graph/program/gradient_changes.h"
#include "holon/graph/program/outputs.h"
#include "holon/graph/program/pipeline.h"
#include "holon/graph/program/program.h"
#include "holon/graph/program/row_order.h"
#include "holon/graph/program/value_strides.h"

namespace holon::graph {

// One use: makes the program of the current rank.
class Lowering {
 public:
  Lowering(const Graph& g, const LoweringOptions& options);
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
  void lower_fused(const Node& n, int m);
  void lower_clip(const Node& n, int m);

 private:
  // What the rank does, by section and stage.
  void sort_nodes();
  // The nodes of a section for a micro-batch, in a stage.
  std::vector<NodeId>& list(Section section, int stage, int variant) {
    const bool often = per_micro_batch(section);
    return at_index(at_index(lists_, section), often ? variant * stages_ + stage : 0);
  }
  void bind_outside();
  void bind_input(size_t i);
  void run_section(Section section, int stage, int m);
  void put_updates_last();
  // Before v is read: what is on its way is waited for.
  void need(ValueId v, int m);
  // The sum over micro-batches as a tree of their numbers: its order is that of a batch which is cut otherwise.
  void accumulate_in_tree(const Node& n, int m);

  // Whether all that the op gives is only added up over micro-batches, and its kernel may do that.
  bool sums_can_be_added_to(const Node& n, int m, std::span<const Dims> shapes);
  // The value in the memory of its sum over micro-batches.
  Array* in_sum(ValueId v, int m);
  // Output o over one of the given inputs that nobody reads any more, which is received out of them; else nullptr.
  Array* in_place_of_input(const Node& n, int m, size_t o, const Dims& shape, const Dims& strides, uint32_t& inputs);
  // The external that the result of a boxing with this plan is written into, where the boxing may write it there at
  // once: an updated shard, a window on its parameter, is gathered. Else nullptr.
  const Array* gathered_in_place(const Node& n, int m, const boxing::Plan& plan);
  // Whether output o is what is written into the external that input i is: then it may be written there at once.
  bool replaces_external(const Node& n, size_t i, size_t o) const;
  // Output o in the memory of input i, where that is read for the last time. Pre: the kernel may do that.
  Array* over_input(const Node& n, int m, size_t i, size_t o, const Dims& shape, const Dims& strides);
  void lower_view(const Node& n, int m, const Array& in, const Dims& shape);
  // This rank's part under `to` in its part under `from`, which holds it.
  Array window(const Array& a, const Dims& shape, const GlobalSpec* from, const GlobalSpec* to) const;

  const Graph& g_;
  std::unique_ptr<Program> p_;
  LoweredValues values_;
  const ValueStrides strides_;
  const RowOrder order_;
  const Pipeline pipeline_;
  BucketMemory memory_;
  Crossings crossings_;
  GradientChanges gradients_;
  Outputs outputs_;
  const int stages_;
  std::array<std::vector<std::vector<NodeId>>, 5> lists_;  // by section; then variant and stage
  std::unordered_map<ValueId, ValueId> sum_of_;            // of a value that is only added up over micro-batches
  // Of such a sum: level l is the sum of 2^l micro-batches.
  struct Pending {
    std::vector<Array*> levels;
    std::vector<int32_t> buffers;
    int taken = 0, last = 0;
    bool reverse = false;
  };
  std::unordered_map<ValueId, Pending> pending_;
};

}  // namespace holon::graph
