#include <torch/torch.h>
#include <iostream>

int main() {
  torch::nn::LSTM lstm(8, 16);
  auto [out, state] = lstm(torch::randn({5, 2, 8}));
  std::cout << out.sizes() << "\n";
}
