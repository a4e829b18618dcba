#include <holon/holon.h>
#include <iostream>
using namespace holon;

int main() {
  auto x = reshape(arange(0, 12), {3, 4});
  std::cout << x[{1, Slice(1, 3)}] << "\n" << x[{Ellipsis, Slice(None, None, 2)}] << "\n" << x[x > 8] << "\n";
  index_put_(x, {0, Slice()}, -1);
  std::cout << x << "\n" << x.to(float64).mean().item<double>() << "\n";
}
