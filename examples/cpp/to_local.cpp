// From global to local: each rank gets the part that it holds, without a copy.
//   holon-launch --nproc_per_node 2 ./to_local
#include "check.h"
namespace flow = holon;

int main() {
  auto placement = flow::placement("cpu", {0, 1});
  auto x = flow::randn({4, 5}, {.placement = placement, .sbp = flow::sbp::split(0)});
  auto part = x.to_local();
  flow::print(part);
  auto mine = flow::slice(x.full(), 0, 2 * flow::rank(), 2 * flow::rank() + 2);
  return expect(part.is_local() && part.array().storage == x.array().storage && close(part, mine, 0));
}
