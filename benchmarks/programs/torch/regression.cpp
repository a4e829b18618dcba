#include <torch/torch.h>
#include <iostream>

int main() {
  torch::manual_seed(0);
  auto x = torch::randn({128, 1}), y = 3 * x + 2;
  auto w = torch::zeros({1, 1}, torch::requires_grad()), b = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD sgd({w, b}, torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 100; ++step) {
    sgd.zero_grad();
    auto loss = torch::mse_loss(torch::matmul(x, w) + b, y);
    loss.backward();
    sgd.step();
  }
  std::cout << w.item<float>() << " " << b.item<float>() << "\n";
}
