// What a call from C++ costs beside its kernel: 4x4 tensors, local, recorded, and global on one rank. One JSON object a
// line; ratio is the goal (0.3 us more than the kernel, recorded 0.25 us; global 0.5 us more than local) over what was
// measured.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "holon/kernels/elementwise.h"
#include "holon/kernels/gemm.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/tensor.h"

namespace {

namespace flow = holon;

double microseconds(const std::function<void()>& f) {
  constexpr int kCalls = 20000;
  std::vector<double> times;
  for (int i = 0; i < 11; ++i) {
    auto start = std::chrono::steady_clock::now();
    for (int k = 0; k < kCalls; ++k) f();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
                    kCalls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void report(const char* name, double value, const char* base, double base_us, double more_us) {
  std::printf("{\"name\": \"dispatch: C++ %s\", \"value\": %.4f, \"unit\": \"us\", \"against\": \"%s + %g us\", "
              "\"ratio\": %.3f}\n",
              name, value, base, more_us, (base_us + more_us) / value);
  std::fflush(stdout);
}

}  // namespace

int main() {
  auto where = flow::placement("cpu", {0});
  flow::Tensor x = flow::rand({4, 4}), y = flow::rand({4, 4});
  flow::Tensor gx = flow::rand({4, 4}, {.placement = where, .sbp = flow::sbp::split(0)}),
               gy = flow::rand({4, 4}, {.placement = where, .sbp = flow::sbp::split(0)});
  flow::Tensor wx = x.detach().set_requires_grad();
  flow::Array out = flow::Array::empty({4, 4}, flow::float32), a = x.array(), b = y.array();
  double add_kernel = microseconds([&] { flow::kernels::binary(flow::kernels::BinaryOp::Add, a, b, out); });
  double matmul_kernel = microseconds([&] { flow::kernels::matmul(a, b, out); });
  double add = microseconds([&] { flow::add(x, y); }), matmul = microseconds([&] { flow::matmul(x, y); });
  double global_add = microseconds([&] { flow::add(gx, gy); });
  double recorded = microseconds([&] { flow::add(wx, y); });
  report("local add", add, "its kernel", add_kernel, 0.3);
  report("local matmul", matmul, "its kernel", matmul_kernel, 0.3);
  report("recorded add", recorded, "its kernel", add_kernel, 0.25);
  report("global add", global_add, "the local one", add, 0.5);
}
