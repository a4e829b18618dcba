// relayout(): what a running job holds moves to another layout, without files: other ranks, another sbp, other stages
// of a pipeline.
//
//   // From data parallel to two stages, each split over two ranks.
//   optim::relayout({model}, {&adam}, [&](const std::string& name, const Tensor&) -> optim::Layout {
//     return {name.starts_with("up.") ? first : second, sbp::split(0)};
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "holon/global/nd_sbp.h"
#include "holon/global/placement.h"
#include "holon/nn/module.h"
#include "holon/optim/optimizer.h"
#include "holon/tensor/tensor.h"

namespace holon::optim {

// Where a tensor goes. Without a placement it stays as it is.
struct Layout {
  Placement placement = {};
  NdSbp sbp = sbp::broadcast();
};

// The layout of a parameter or buffer, by its name in its module. One sbp applies to all axes of the hierarchy; splits
// of an axis that the tensor has not are broadcast.
using LayoutOf = std::function<Layout(const std::string& name, const Tensor& tensor)>;

// Brings the parameters and buffers of the modules to the layouts that layout_of names, with their gradients, and the
// optimizers' states to the layouts of their parameters. The tensors stay the same objects, so that modules, optimizers
// and graphs hold them as before; graphs capture their steps again, and whatever else names a placement, such as
// Graph::set_stage(), is the caller's to change.
//
// Every rank takes each element that it lacks once, in one move for each tensor; ranks that nothing is left on have no
// part. The tensors go one after the other, in an order that keeps what a rank holds, at any time, below the larger of
// what it holds before and after, and the parts of one tensor (of the largest, at worst). Returns how many bytes this
// rank has taken from others.
//
// Errors, before anything is moved: a local tensor for which there is a layout; a layout that does not fit; an
// optimizer's parameter that is in none of the modules; ranks whose tensors or layouts differ. If a rank fails in the
// middle, an error on all ranks says so, and some tensors have their new layout, others the old: the state is to be
// loaded from a checkpoint then. Collective over the world.
int64_t relayout(const std::vector<nn::Module>& modules, const std::vector<Optimizer*>& optimizers,
                 const LayoutOf& layout_of);

// A tensor and where it goes.
struct Move {
  std::string name;  // for messages
  Tensor tensor;
  Layout to;
};

// The same for tensors, each as one object, without their gradients.
int64_t relayout(std::vector<Move> moves);

}  // namespace holon::optim
