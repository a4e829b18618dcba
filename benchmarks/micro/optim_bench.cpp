// Optimizer steps of a whole model against memcpy of the bytes that they read and write, both in all threads, in the
// same run. One JSON object per line; ratio is memcpy's time over the step's (1: as fast as memory). 3.3 million
// parameters are those of a small network, in tensors of many sizes; 100 million do not fit into any cache.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/optim/rule.h"
#include "holon/optim/update.h"

namespace {

using namespace holon;
using namespace holon::optim;

double milliseconds(const std::function<void()>& f) {
  auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

Tensor filled(int64_t n, DType dtype, double value) {
  Array a = Array::empty({n}, dtype);
  kernels::fill(a, value);
  return Tensor::local(std::move(a));
}

// bytes_each: read and written for one parameter.
void bench(const std::string& name, const Rule& rule, const std::vector<int64_t>& sizes, DType dtype,
           double bytes_each) {
  std::vector<Slot> slots;
  int64_t total = 0;
  for (int64_t n : sizes) {
    slots.emplace_back();
    slots.back().param = filled(n, dtype, 1);
    slots.back().grad = filled(n, dtype, 1e-3);
    total += n;
  }
  const int64_t half = static_cast<int64_t>(bytes_each * static_cast<double>(total) / 2);
  Array from = Array::empty({half}, uint8), to = Array::empty({half}, uint8);
  kernels::fill(from, 1), kernels::fill(to, 2);
  auto copy = [&] {
    parallel_for(half, 1 << 16, [&](int64_t begin, int64_t end) {
      std::memcpy(to.bytes() + begin, from.bytes() + begin, static_cast<size_t>(end - begin));
    });
  };
  auto step = [&] { update(rule, slots); };
  step(), copy(), step();
  std::vector<double> a, b;
  for (int i = 0; i < (total > 50'000'000 ? 5 : 21); ++i)
    a.push_back(milliseconds(step)), b.push_back(milliseconds(copy));
  std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
  const double ours = a[a.size() / 2], theirs = b[b.size() / 2];
  std::printf("{\"name\": \"optim/%s\", \"value\": %.4g, \"unit\": \"ms\", \"against\": \"memcpy of the same bytes in "
              "%d threads (%.3g GB/s)\", \"ratio\": %.3f}\n",
              name.c_str(), ours, num_threads(), 2e-6 * static_cast<double>(half) / theirs, theirs / ours);
  std::fflush(stdout);
}

}  // namespace

int main() {
  // 3.3 million: the matrices, rows and biases of a transformer of 4 layers and width 256.
  std::vector<int64_t> small{256 * 256, 512 * 256};
  for (int layer = 0; layer < 4; ++layer)
    for (int64_t n : {256 * 768, 768, 256 * 256, 256, 256 * 1024, 1024, 1024 * 256, 256, 256, 256, 256, 256})
      small.push_back(n);
  std::vector<int64_t> large(10, 10'000'000);
  const AdamOptions adam{.lr = 1e-4, .weight_decay = 0.01, .decoupled = true};
  for (auto& [what, sizes] : {std::pair<std::string, std::vector<int64_t>>{"3.3M", small}, {"100M", large}}) {
    bench("adamw " + what + " f32", rule_of(adam), sizes, float32, 28);
    AdamOptions half = adam;
    half.group.master_weights = true;
    bench("adamw " + what + " bf16, f32 master", rule_of(half), sizes, bfloat16, 28);
    bench("sgd momentum " + what + " f32", rule_of(SgdOptions{.lr = 1e-4, .momentum = 0.9}), sizes, float32, 20);
    // Two passes: mean, square, parameter and gradient for the norms, then mean, square and parameter.
    bench("lamb " + what + " f32", rule_of(LambOptions{.lr = 1e-4, .weight_decay = 0.01}), sizes, float32, 40);
  }
}
