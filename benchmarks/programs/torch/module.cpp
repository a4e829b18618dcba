#include <torch/torch.h>
#include <iostream>
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  nn::Linear up{nullptr}, down{nullptr};
  NetImpl() {
    up = register_module("up", nn::Linear(4, 16));
    down = register_module("down", nn::Linear(16, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::relu(up(x))); }
};
TORCH_MODULE(Net);

int main() {
  Net net;
  for (auto& p : net->named_parameters()) std::cout << p.key() << " " << p.value().sizes() << "\n";
  std::cout << net(torch::ones({3, 4})).sizes() << "\n";
}
