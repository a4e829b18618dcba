#include <holon/holon.h>
#include <iostream>

int main() {
  auto x = holon::tensor({1.0, 2.0, 3.0}, {.requires_grad = true});
  auto y = (x * x * x).sum();
  y.backward();
  std::cout << y.item<float>() << " " << x.grad() << "\n";
}
