// A pipeline whose input begins as a local tensor, which to_global puts on the first stage's rank.
//   holon-launch --nproc_per_node 2 ./pipeline_from_local
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto p0 = flow::placement("cpu", {0});
  auto p1 = flow::placement("cpu", {1});
  auto broadcast = flow::sbp::broadcast();
  auto w0 = flow::randn({5, 8}, {.placement = p0, .sbp = broadcast});
  auto w1 = flow::randn({8, 3}, {.placement = p1, .sbp = broadcast});

  auto x = flow::randn({4, 5});  // local: each rank has one of its own; rank 0's goes into the pipeline
  auto in_stage0 = x.to_global(p0, broadcast);
  auto out_stage0 = flow::matmul(in_stage0, w0);
  std::cout << out_stage0.shape().str() << "\n";  // [4, 8]

  auto in_stage1 = out_stage0.to_global(p1, broadcast);
  auto out_stage1 = flow::matmul(in_stage1, w1);
  std::cout << out_stage1.shape().str() << "\n";  // [4, 3]
  auto whole = in_stage0.full();
  bool from_rank_0 = flow::rank() != 0 || close(whole, x, 0);
  return expect(from_rank_0 && close(out_stage1, flow::matmul(flow::matmul(whole, w0.full()), w1.full())));
}
