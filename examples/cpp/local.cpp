// A product of local tensors, on one rank: what the other programs divide.
//   ./local
#include <iostream>

#include "check.h"
namespace flow = holon;

int main() {
  auto x = flow::randn({4, 5});
  auto w = flow::randn({5, 8});
  auto out = flow::matmul(x, w);
  std::cout << out.shape().str() << "\n";  // [4, 8]

  auto by_hand = flow::sum(flow::unsqueeze(x, 2) * flow::unsqueeze(w, 0), flow::Dims{1});
  return expect(out.is_local() && out.shape() == flow::Dims{4, 8} && close(out, by_hand));
}
