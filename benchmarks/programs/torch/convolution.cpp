#include <torch/torch.h>
#include <iostream>
namespace nn = torch::nn;

int main() {
  nn::Sequential net(nn::Conv2d(1, 8, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(8 * 13 * 13, 10));
  net->eval();
  torch::NoGradGuard no_grad;
  std::cout << net->forward(torch::randn({2, 1, 28, 28})).sizes() << "\n";
}
