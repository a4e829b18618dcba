#include <torch/torch.h>
#include <iostream>
using namespace torch::indexing;

int main() {
  auto x = torch::arange(0, 12).reshape({3, 4});
  std::cout << x.index({1, Slice(1, 3)}) << "\n"
            << x.index({Ellipsis, Slice(None, None, 2)}) << "\n"
            << x.index({x > 8}) << "\n";
  x.index_put_({0, Slice()}, -1);
  std::cout << x << "\n" << x.to(torch::kFloat64).mean().item<double>() << "\n";
}
