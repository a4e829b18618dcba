// The sbp of a result follows from those of the operands: split(0) x broadcast gives split(0), without communication.
//   holon-launch --nproc_per_node 2 ./matmul_sbp
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto placement = flow::placement("cpu", {0, 1});
  auto x = flow::randn({4, 5}, {.placement = placement, .sbp = flow::sbp::split(0)});
  auto w = flow::randn({5, 8}, {.placement = placement, .sbp = flow::sbp::broadcast()});
  auto y = flow::matmul(x, w);
  std::cout << y.is_global() << " " << y.shape().str() << " " << flow::to_string(y.nd_sbp()) << "\n";
  flow::print(y.to_local());

  // The other pairs: columns of w give columns of y; a split inner axis gives addends.
  auto columns =
      flow::matmul(x.to_global(placement, flow::sbp::broadcast()), w.to_global(placement, flow::sbp::split(1)));
  auto addends = flow::matmul(x.to_global(placement, flow::sbp::split(1)), w.to_global(placement, flow::sbp::split(0)));
  return expect(y.is_global() && y.shape() == flow::Dims{4, 8} && y.nd_sbp() == flow::sbp::split(0) &&
                columns.nd_sbp() == flow::sbp::split(1) && addends.nd_sbp() == flow::sbp::partial_sum() &&
                close(y, columns) && close(y, addends));
}
