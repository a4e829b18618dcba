#include <holon/holon.h>
#include <iostream>

int main() {
  holon::nn::LSTM lstm(8, 16);
  auto [out, h, c] = lstm(holon::randn({5, 2, 8}));
  std::cout << out.shape() << "\n";
}
