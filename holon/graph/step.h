// One compiled step of a captured graph, for this rank: passes, then lowering to a flat list of instructions over one
// arena.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holon/graph/ir/graph.h"
#include "holon/graph/options/options.h"
#include "holon/graph/step_stats.h"

namespace holon::graph {

struct Program;

class Step {
 public:
  // Collective where ranks exchange something in the step: they compare what they have compiled. Errors: ranks captured
  // different graphs (naming the first node that differs); what a pass refuses.
  Step(Graph captured, const CompileOptions& options);
  // For micro-batches of unequal rows: a capture for each variant, and the variant of each micro-batch.
  Step(std::vector<Graph> captured, std::vector<int8_t> variant_of, const CompileOptions& options);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // inputs: as those of the capture, with all micro-batches' rows. Outputs have their own memory. With several
  // micro-batches, an output whose first axis is the micro-batch's rows comes joined along it; others get a new first
  // axis of that many. Collective. Errors: another number of inputs, other shapes, dtypes or layouts; what an
  // instruction raises, with its module and line.
  std::vector<Tensor> run(std::span<const Tensor> inputs);

  const Graph& graph() const;      // after the passes, with all variants
  const Program& program() const;  // this rank's
  const StepStats& stats() const;
  std::string plan() const;    // this rank's instructions, a line each
  std::string passes() const;  // what each pass did, and how long it took

  // With a scaled loss: by what the next runs divide gradients, and of which optimizers the last one's were finite.
  // Those whose were not have done nothing. Errors: the loss was captured without a scale.
  void set_loss_scale(double scale);
  std::span<const uint8_t> finite() const;

  // Of the last run: the norms by which gradients were clipped, of Capture::clip_gradients() in the order of the calls,
  // then of the optimizers' groups. Before a run: zeros. Waits for a device on which they are clipped.
  std::vector<double> norms() const;

  // The groups of the optimizers in the order of Capture::add_update(). slots: those parameters that have a gradient.
  // Their state is made by the first run() unless given before; learning rates may be changed between runs.
  size_t n_updates() const;
  optim::Rule& rule(size_t update);
  std::span<optim::Slot> slots(size_t update);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace holon::graph
