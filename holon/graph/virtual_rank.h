// One rank of a world that is not there: to compile a graph for it, and see what it would hold and send, on any
// machine.
#pragma once

#include <memory>

#include "holon/base/context.h"
#include "holon/tensor/tracer.h"

namespace holon::graph {

// While it lives, this thread is that rank, and tensors have shapes and layouts but no data: nothing is computed and
// nothing sent. Models are made, and graphs captured and compiled as ever; a graph's step can only be run while a
// contract is recorded (contract/contract.h), and does nothing then. Ops, backward and optimizers have the layouts of
// eager mode, so that a contract has what they would move. Values cannot be read.
//
//   VirtualRank rank(17, 3072, 8);
//   auto w = randn({12288, 12288}, {.placement = p, .sbp = s});   // takes no memory
class VirtualRank {
 public:
  // ranks_per_host: hosts have so many consecutive ranks; 0: all are on one. Errors: a rank that the world has not; a
  // graph is being captured on this thread.
  VirtualRank(int rank, int world_size, int ranks_per_host = 0);
  ~VirtualRank();
  VirtualRank(const VirtualRank&) = delete;
  VirtualRank& operator=(const VirtualRank&) = delete;

 private:
  class Shapes;
  std::unique_ptr<Context> context_;
  std::unique_ptr<Shapes> shapes_;
  Context* before_;
};

// Whether this thread is a virtual rank.
bool is_virtual();

}  // namespace holon::graph
