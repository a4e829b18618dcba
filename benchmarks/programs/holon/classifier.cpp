#include <holon/holon.h>
#include <iostream>
namespace nn = holon::nn;

int main() {
  holon::manual_seed(0);
  auto x = holon::randn({256, 2});
  auto label = (holon::sum(x * x, 1) > 1).to(holon::int64);
  nn::Sequential net{nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 2)};
  holon::optim::AdamW adam(net.parameters(), {.lr = 0.02});
  for (int step = 0; step < 200; ++step) {
    adam.zero_grad();
    holon::cross_entropy(net(x), label).backward();
    holon::optim::clip_grad_norm(net.parameters(), 1.0);
    adam.step();
  }
  std::cout << (holon::argmax(net(x), 1) == label).to(holon::float32).mean().item<float>() << "\n";
}
