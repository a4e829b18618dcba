// Pipeline parallelism: the first stage is on rank 0, the second on rank 1, and to_global carries values between
// them.
//   holon-launch --nproc_per_node 2 ./pipeline
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto p0 = flow::placement("cpu", {0});
  auto p1 = flow::placement("cpu", {1});
  auto broadcast = flow::sbp::broadcast();
  auto w0 = flow::randn({5, 8}, {.placement = p0, .sbp = broadcast});
  auto w1 = flow::randn({8, 3}, {.placement = p1, .sbp = broadcast});

  auto in_stage0 = flow::randn({4, 5}, {.placement = p0, .sbp = broadcast});
  auto out_stage0 = flow::matmul(in_stage0, w0);
  std::cout << out_stage0.shape().str() << "\n";  // [4, 8]

  auto in_stage1 = out_stage0.to_global(p1, broadcast);
  auto out_stage1 = flow::matmul(in_stage1, w1);
  std::cout << out_stage1.shape().str() << "\n";  // [4, 3]
  auto expected = flow::matmul(flow::matmul(in_stage0.full(), w0.full()), w1.full());
  return expect(out_stage0.shape() == flow::Dims{4, 8} && out_stage1.placement() == p1 && close(out_stage1, expected));
}
