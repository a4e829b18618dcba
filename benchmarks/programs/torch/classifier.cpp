#include <torch/torch.h>
#include <iostream>
namespace nn = torch::nn;

int main() {
  torch::manual_seed(0);
  auto x = torch::randn({256, 2});
  auto label = (torch::sum(x * x, 1) > 1).to(torch::kInt64);
  nn::Sequential net(nn::Linear(2, 32), nn::ReLU(), nn::Linear(32, 2));
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.02));
  for (int step = 0; step < 200; ++step) {
    adam.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(x), label).backward();
    nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    adam.step();
  }
  std::cout << (torch::argmax(net->forward(x), 1) == label).to(torch::kFloat32).mean().item<float>() << "\n";
}
