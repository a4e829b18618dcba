#include <holon/holon.h>
#include <iostream>

int main() {
  auto x = holon::ones({2, 3}), w = holon::full({3, 4}, 0.5);
  std::cout << holon::matmul(x, w) << "\n";
}
