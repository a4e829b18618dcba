// The graph run with eager ops, one node after the other: slow, and right by construction.
#pragma once

#include <span>
#include <vector>

#include "holon/graph/ir/graph.h"

namespace holon::graph {

// What optimizers keep from step to step: of update i, the slots in its order.
struct OptimizerState {
  std::vector<std::vector<optim::Slot>> of_update;
};

// As interpret(Graph&, inputs), for several steps with one state.
std::vector<Tensor> interpret(Graph& g, std::span<const Tensor> inputs, OptimizerState& state);

// A step of several micro-batches with their inputs: what runs once per step does, sums are taken over the
// micro-batches. Returns the outputs of each. Collective. Pre: g.micro_batches is their number, or gradients are not
// accumulated in the graph.
std::vector<std::vector<Tensor>> interpret_step(Graph& g, std::span<const std::vector<Tensor>> micro_batches,
                                                OptimizerState& state);

}  // namespace holon::graph
