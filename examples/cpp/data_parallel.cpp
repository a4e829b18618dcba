// Data parallelism: the rows of the input are split over two ranks, and both have the whole weight.
//   holon-launch --nproc_per_node 2 ./data_parallel
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto placement = flow::placement("cpu", {0, 1});
  auto x = flow::randn({4, 5}, {.placement = placement, .sbp = flow::sbp::split(0)});
  auto w = flow::randn({5, 8}, {.placement = placement, .sbp = flow::sbp::broadcast(), .requires_grad = true});
  auto out = flow::matmul(x, w);
  std::cout << out.shape().str() << " " << out.nd_sbp().str() << "\n";  // [4, 8] S(0)

  // The gradient of w is distributed as w is: summed over the ranks, the same on both.
  out.sum().backward();
  auto expected = flow::matmul(x.full().transpose(0, 1), flow::ones({4, 8}));
  return expect(out.shape() == flow::Dims{4, 8} && out.nd_sbp() == flow::sbp::split(0) &&
                close(out, flow::matmul(x.full(), w.full())) && w.grad().nd_sbp() == flow::sbp::broadcast() &&
                close(w.grad(), expected));
}
