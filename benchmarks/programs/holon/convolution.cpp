#include <holon/holon.h>
#include <iostream>
namespace nn = holon::nn;

int main() {
  nn::Sequential net{nn::Conv2d(1, 8, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(8 * 13 * 13, 10)};
  net.eval();
  holon::NoGradGuard no_grad;
  std::cout << net(holon::randn({2, 1, 28, 28})).shape() << "\n";
}
