// From split to broadcast: to_global changes the sbp, here by one all_gather, and the logical value stays.
//   holon-launch --nproc_per_node 2 ./split_to_broadcast
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto x = flow::randn({2, 5});
  auto placement = flow::placement("cpu", {0, 1});
  auto x_global = x.to_global(placement, flow::sbp::split(0));
  std::cout << x_global.shape().str() << "\n";  // [4, 5]
  flow::print(x_global.to_local());             // two rows

  auto x_whole = x_global.to_global(placement, flow::sbp::broadcast());
  std::cout << x_whole.shape().str() << "\n";  // [4, 5]
  flow::print(x_whole.to_local());             // all four rows
  return expect(x_global.to_local().shape() == flow::Dims{2, 5} && x_whole.to_local().shape() == flow::Dims{4, 5} &&
                close(x_whole.to_local(), x_global, 0));
}
