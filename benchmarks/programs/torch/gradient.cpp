#include <torch/torch.h>
#include <iostream>

int main() {
  auto x = torch::tensor({1.0, 2.0, 3.0}, torch::requires_grad());
  auto y = (x * x * x).sum();
  y.backward();
  std::cout << y.item<float>() << " " << x.grad() << "\n";
}
