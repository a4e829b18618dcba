// Model parallelism: both ranks have the whole input, and the columns of the weight are split over them.
//   holon-launch --nproc_per_node 2 ./model_parallel
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto placement = flow::placement("cpu", {0, 1});
  auto x = flow::randn({4, 5}, {.placement = placement, .sbp = flow::sbp::broadcast()});
  auto w = flow::randn({5, 8}, {.placement = placement, .sbp = flow::sbp::split(1)});
  auto out = flow::matmul(x, w);
  std::cout << out.shape().str() << " " << out.nd_sbp().str() << "\n";  // [4, 8] S(1)
  return expect(out.shape() == flow::Dims{4, 8} && out.nd_sbp() == flow::sbp::split(1) &&
                close(out, flow::matmul(x.full(), w.full())));
}
