#include <holon/holon.h>
#include <iostream>
namespace nn = holon::nn;

struct Net : nn::Layer<Net> {
  nn::Linear up{4, 16}, down{16, 2};
  Net() {
    register_module("up", up);
    register_module("down", down);
  }
  holon::Tensor forward(const holon::Tensor& x) const { return down(holon::relu(up(x))); }
};

int main() {
  Net net;
  for (auto& [name, p] : net.named_parameters()) std::cout << name << " " << p.shape() << "\n";
  std::cout << net(holon::ones({3, 4})).shape() << "\n";
}
