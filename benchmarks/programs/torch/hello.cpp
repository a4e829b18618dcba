#include <torch/torch.h>
#include <iostream>

int main() {
  auto x = torch::ones({2, 3}), w = torch::full({3, 4}, 0.5);
  std::cout << torch::matmul(x, w) << "\n";
}
