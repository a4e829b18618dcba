#include <holon/holon.h>
#include <iostream>
namespace nn = holon::nn;

int main() {
  nn::Linear net(3, 2), copy(3, 2);
  holon::save({{"net", net.state_dict()}, {"step", 7}}, "program.safetensors");
  auto saved = holon::load("program.safetensors");
  copy.load_state_dict(saved["net"].state_dict());
  auto x = holon::ones({1, 3});
  std::cout << saved["step"].integer() << " " << holon::allclose(net(x), copy(x)).item<bool>() << "\n";
}
