#include <holon/holon.h>

#include <cstdio>

namespace flow = holon;

int main() {
  auto y = flow::matmul(flow::ones({2, 3}), flow::ones({3, 4}));
  std::printf("%s %g\n", y.shape().str().c_str(), y.data<float>()[7]);
}
