// A product of global tensors: every rank multiplies the rows that it holds, and the sum is that of all of them.
#include <holon/holon.h>

#include <cstdio>

namespace flow = holon;

int main() {
  auto all = flow::Placement::all("cpu");
  auto x = flow::ones({4, 5}, {.placement = all, .sbp = flow::sbp::split(0)});
  auto w = flow::ones({5, 8}, {.placement = all, .sbp = flow::sbp::broadcast()});
  auto y = flow::matmul(x, w);
  std::printf("rank %d of %d: %s of %s\n", flow::rank(), flow::world_size(), y.to_local().shape().str().c_str(),
              y.shape().str().c_str());
  return y.sum().item<double>() == 160.0 ? 0 : 1;
}
