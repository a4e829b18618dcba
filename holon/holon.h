// The one header for C++ programs: tensors, placements and sbps, all ops, modules, optimizers, graphs, data and
// checkpoints.
#pragma once

#if __cplusplus < 202002L
#error "Holon's headers are C++20: compile with -std=c++20 (CMake: target_link_libraries(... Holon::holon) does)"
#endif

#include "holon/autograd/engine.h"
#include "holon/autograd/function.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/boxing/events.h"
#include "holon/boxing/planner.h"
#include "holon/checkpoint/checkpoint.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/context_handoff.h"
#include "holon/comm/run_ranks.h"
#include "holon/data/corpus.h"
#include "holon/data/idx.h"
#include "holon/data/loader.h"
#include "holon/data/mnist.h"
#include "holon/data/place.h"
#include "holon/data/sampler.h"
#include "holon/data/synthetic_digits.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/dispatch.h"
#include "holon/graph/nn_graph.h"
#include "holon/nn/init.h"
#include "holon/nn/layers.h"
#include "holon/nn/module.h"
#include "holon/ops.h"
#include "holon/ops/indexing.h"
#include "holon/ops/operators.h"
#include "holon/ops/values.h"
#include "holon/optim/optimizer.h"
#include "holon/optim/schedule.h"
#include "holon/optim/update.h"
#include "holon/registry/library.h"
#include "holon/tensor/print.h"
#include "holon/tensor/tensor.h"
#include "holon/tensor/visualize.h"

namespace holon {

// placement("cpu", {0, 1}): ranks in a row. placement("cpu", {2, 2}, {0, 1, 2, 3}): in a grid, row by row.
inline Placement placement(std::string_view type, std::vector<int64_t> ranks) {
  return Placement(type, std::move(ranks));
}
inline Placement placement(std::string_view type, const Dims& hierarchy, std::vector<int64_t> ranks) {
  return Placement(type, hierarchy, std::move(ranks));
}

// This rank's number, and how many ranks the launcher started.
inline int rank() { return Context::current().rank(); }
inline int world_size() { return Context::current().world_size(); }

// run_ranks(2, [](int rank) { ... }): ranks as threads of this process, their own world.
using comm::run_ranks;
// For threads that a rank starts itself.
using comm::ContextHandoff;
// Waits for all ranks. Collective.
inline void barrier() {
  if (world_size() > 1) comm::communicator(Placement::all("cpu").ranks()).barrier();
}

// The steps that x.to_global(placement, sbp) takes, in words. Moves nothing.
inline std::string explain(const Tensor& x, const Placement& placement, const NdSbp& sbp) {
  if (x.is_local())
    fail_runtime("explain: the tensor is local; boxing is between global ones. Use to_global(placement, sbp) first.");
  check_nd_sbp(x.shape(), placement, sbp, "explain");
  return boxing::explain(x.spec(), intern_spec(placement, sbp), x.shape(), x.dtype());
}

}  // namespace holon
