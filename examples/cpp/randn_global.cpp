// A global random tensor: its values do not depend on how it is split, nor on the number of ranks.
//   holon-launch --nproc_per_node 2 ./randn_global
#include "check.h"
namespace flow = holon;

int main() {
  auto placement = flow::placement("cpu", {0, 1});
  flow::manual_seed(7);
  auto x = flow::randn({4, 5}, {.placement = placement, .sbp = flow::sbp::split(0)});
  flow::print(x.to_local());  // this rank's two rows
  flow::print(x.full());      // the whole value, gathered

  flow::manual_seed(7);
  auto same = flow::randn({4, 5}, {.placement = placement, .sbp = flow::sbp::broadcast()});
  return expect(x.to_local().shape() == flow::Dims{2, 5} && close(x, same, 0));
}
