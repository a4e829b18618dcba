#include <holon/holon.h>
#include <iostream>

int main() {
  holon::manual_seed(0);
  auto x = holon::randn({128, 1}), y = 3 * x + 2;
  auto w = holon::zeros({1, 1}, {.requires_grad = true}), b = holon::zeros({1}, {.requires_grad = true});
  holon::optim::SGD sgd({w, b}, {.lr = 0.1});
  for (int step = 0; step < 100; ++step) {
    sgd.zero_grad();
    auto loss = holon::mse_loss(holon::matmul(x, w) + b, y);
    loss.backward();
    sgd.step();
  }
  std::cout << w.item<float>() << " " << b.item<float>() << "\n";
}
