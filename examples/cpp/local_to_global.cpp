// From local to global: the ranks' tensors are put together along the split axis.
//   holon-launch --nproc_per_node 2 ./local_to_global
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto x = flow::randn({2, 5});
  std::cout << x.is_local() << " " << x.is_global() << "\n";  // 1 0
  auto x_global = x.to_global(flow::placement("cpu", {0, 1}), flow::sbp::split(0));
  std::cout << x_global.shape().str() << "\n";                       // [4, 5]
  std::cout << x.is_local() << " " << x_global.is_global() << "\n";  // 1 1
  auto mine = flow::slice(x_global.full(), 0, 2 * flow::rank(), 2 * flow::rank() + 2);
  return expect(x.is_local() && x_global.is_global() && x_global.shape() == flow::Dims{4, 5} && close(mine, x, 0));
}
