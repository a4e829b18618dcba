// Element-wise loops, reductions, rows, random numbers and optimizer steps against memcpy of the bytes that they read
// and write, in the same run. One JSON object per line; ratio is memcpy's time over the kernel's (1: as fast as
// memory). Set OMP_NUM_THREADS=1 to compare single threads, HOLON_ISA to compare instruction sets.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/index.h"
#include "holon/kernels/loss.h"
#include "holon/kernels/norm.h"
#include "holon/kernels/optim.h"
#include "holon/kernels/random.h"
#include "holon/kernels/reduce.h"
#include "holon/kernels/softmax.h"

namespace {

using namespace holon;
using namespace holon::kernels;

double once(const std::function<void()>& f, int64_t count) {
  auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < count; ++i) f();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
      static_cast<double>(count);
}

// Times f and a copy in turns, and prints the medians. bytes: what f reads and writes together.
void against_memcpy(const std::string& name, double bytes, const std::function<void()>& f) {
  const size_t half = static_cast<size_t>(bytes / 2);
  std::vector<char> from(half, 1), to(half, 2);
  auto copy_bytes = [&] { std::memcpy(to.data(), from.data(), half); };
  f(), copy_bytes();
  const int64_t count = std::clamp<int64_t>(static_cast<int64_t>(10000 / (once(f, 1) + 0.01)), 1, 200000);
  const int64_t copies = std::clamp<int64_t>(static_cast<int64_t>(10000 / (once(copy_bytes, 1) + 0.01)), 1, 200000);
  std::vector<double> a, b;
  for (int i = 0; i < 7; ++i) a.push_back(once(f, count)), b.push_back(once(copy_bytes, copies));
  std::sort(a.begin(), a.end()), std::sort(b.begin(), b.end());
  std::printf("{\"name\": \"kernels/%s\", \"value\": %.4g, \"unit\": \"us\", \"against\": \"memcpy of the same bytes "
              "(%.3g GB/s)\", \"ratio\": %.3f}\n",
              name.c_str(), a[3], bytes / b[3] / 1e3, b[3] / a[3]);
  std::fflush(stdout);
}

// Nanoseconds of one call that has next to nothing to compute.
void per_call(const std::string& name, const std::function<void()>& f) {
  f();
  std::vector<double> a;
  for (int i = 0; i < 9; ++i) a.push_back(once(f, 100000) * 1e3);
  std::sort(a.begin(), a.end());
  std::printf("{\"name\": \"kernels/%s\", \"value\": %.4g, \"unit\": \"ns\"}\n", name.c_str(), a[4]);
  std::fflush(stdout);
}

Array random_array(const Dims& shape, DType dtype = float32) {
  Array x = Array::empty(shape, dtype);
  normal(RandomPart::whole(1, 0, shape), 0, 1, x);
  return x;
}

}  // namespace

int main() {
  constexpr int64_t m = 1024, n = m * m;
  const Dims square{m, m};
  Array a = random_array(square), b = random_array(square), c = random_array(square), row = random_array({m}),
        column = random_array({m, 1});
  Array flags = Array::empty(square, boolean), half = random_array(square, bfloat16),
        half_out = random_array(square, bfloat16);
  Array fp16 = random_array(square, float16);
  Array small_a = random_array({4, 4}), small_b = random_array({4, 4}), small_c = random_array({4, 4}),
        small_row = random_array({4});
  const double word = 4.0 * n;

  per_call("add 4x4 f32", [&] { binary(BinaryOp::Add, small_a, small_b, small_c); });
  per_call("add 4x4 f32 + row", [&] { binary(BinaryOp::Add, small_a, small_row, small_c); });
  per_call("mul 4x4 f32 by a scalar", [&] { binary_scalar(BinaryOp::Mul, small_a, 2.0, small_c); });
  per_call("relu 4x4 f32", [&] { unary(UnaryOp::Relu, small_a, small_c); });
  per_call("copy 4x4 f32", [&] { copy(small_a, small_c); });
  per_call("sum 4x4 f32", [&] {
    Array out = small_c.view({}, {});
    reduce(ReduceOp::Sum, small_a, 3, out);
  });

  against_memcpy("copy 1M f32", 2 * word, [&] { copy(a, c); });
  Array turned = a.view(square, {1, m});
  against_memcpy("transpose 1024x1024 f32", 2 * word, [&] { copy(turned, c); });
  Array turned_half = half.view(square, {1, m});
  against_memcpy("transpose 1024x1024 bf16", word, [&] { copy(turned_half, half_out); });
  Array heads = a.view({16, 8, 128, 64}, {8 * 128 * 64, 64, 8 * 64, 1}),
        heads_out = c.view({16, 8, 128, 64}, {8 * 128 * 64, 128 * 64, 64, 1});
  against_memcpy("permute [16, 128, 8, 64] to heads first", 2 * word, [&] { copy(heads, heads_out); });
  against_memcpy("f32 to bf16 1M", 1.5 * word, [&] { copy(a, half_out); });
  against_memcpy("bf16 to f32 1M", 1.5 * word, [&] { copy(half, c); });
  against_memcpy("f16 to f32 1M", 1.5 * word, [&] { copy(fp16, c); });
  against_memcpy("fill 1M f32", word, [&] { fill(c, 1); });

  against_memcpy("add 1M f32", 3 * word, [&] { binary(BinaryOp::Add, a, b, c); });
  against_memcpy("add 1M bf16", 1.5 * word, [&] { binary(BinaryOp::Add, half, half, half_out); });
  against_memcpy("add 1024x1024 + row", 2 * word, [&] { binary(BinaryOp::Add, a, row, c); });
  against_memcpy("mul 1024x1024 by column", 2 * word, [&] { binary(BinaryOp::Mul, a, column, c); });
  against_memcpy("add 1024x1024 + transposed", 3 * word, [&] { binary(BinaryOp::Add, a, turned, c); });
  against_memcpy("mul 1M by a scalar", 2 * word, [&] { binary_scalar(BinaryOp::Mul, a, 2.0, c); });
  against_memcpy("compare 1M f32", 2.25 * word, [&] { binary(BinaryOp::Lt, a, b, flags); });
  against_memcpy("where 1M f32", 3.25 * word, [&] { where(flags, a, b, c); });
  against_memcpy("pow 1M f32", 3 * word, [&] { binary(BinaryOp::Pow, a, b, c); });
  for (UnaryOp op : {UnaryOp::Relu, UnaryOp::Exp, UnaryOp::Log, UnaryOp::Tanh, UnaryOp::Sigmoid, UnaryOp::Gelu,
                     UnaryOp::GeluTanh, UnaryOp::Silu, UnaryOp::Erf, UnaryOp::Sin, UnaryOp::Sqrt, UnaryOp::Softplus})
    against_memcpy(std::string(name(op)) + " 1M f32", 2 * word, [&, op] { unary(op, a, c); });
  against_memcpy("Gelu 1M bf16", word, [&] { unary(UnaryOp::Gelu, half, half_out); });
  for (BinaryOp op : {BinaryOp::ReluBackward, BinaryOp::GeluBackward, BinaryOp::SiluBackward})
    against_memcpy(std::string(name(op)) + " 1M f32", 3 * word, [&, op] { binary(op, a, b, c); });

  Array all = Array::empty({}, float32), rows = Array::empty({m}, float32), where_max = Array::empty({m}, int64);
  against_memcpy("sum 1M f32", word, [&] { reduce(ReduceOp::Sum, a, 3, all); });
  against_memcpy("sum of rows 1024x1024", word, [&] { reduce(ReduceOp::Sum, a, 2, rows); });
  against_memcpy("sum over rows 1024x1024", word, [&] { reduce(ReduceOp::Sum, a, 1, rows); });
  against_memcpy("max of rows 1024x1024", word, [&] { reduce(ReduceOp::Max, a, 2, rows); });
  against_memcpy("sum 1M bf16", word / 2, [&] { reduce(ReduceOp::Sum, half, 3, all); });
  against_memcpy("argmax of rows 1024x1024", word, [&] { argreduce(true, a, 1, where_max); });

  against_memcpy("softmax 1024x1024 fwd", 2 * word, [&] { softmax(a, 1, c); });
  against_memcpy("softmax 1024x1024 bwd", 3 * word, [&] { softmax_backward(a, b, 1, c); });
  against_memcpy("softmax 1024x1024 axis 0", 2 * word, [&] { softmax(a, 0, c); });
  against_memcpy("log_softmax 1024x1024 fwd", 2 * word, [&] { log_softmax(a, 1, c); });
  against_memcpy("causal softmax 1024x1024 fwd", 2 * word, [&] { scale_mask_softmax(a, 0.125, 0, c); });
  Array mean = Array::empty({m}, float32), rstd = Array::empty({m}, float32), dw = Array::empty({m}, float32),
        db = Array::empty({m}, float32);
  against_memcpy("layer_norm 1024x1024 fwd", 2 * word, [&] { layer_norm(a, 1, row, row, 1e-5, c, mean, rstd); });
  against_memcpy("layer_norm 1024x1024 bwd", 3 * word,
                 [&] { layer_norm_backward(b, a, 1, row, mean, rstd, c, &dw, &db); });
  against_memcpy("rms_norm 1024x1024 fwd", 2 * word, [&] { rms_norm(a, 1, row, 1e-5, c, rstd); });
  Array target = Array::empty({m}, int64), loss = Array::empty({m}, float32), lse = Array::empty({m}, float32);
  randint(RandomPart::whole(1, 1, {m}), 0, m, target);
  against_memcpy("cross_entropy 1024x1024 fwd", word, [&] { cross_entropy(a, target, {}, loss, lse); });
  against_memcpy("cross_entropy 1024x1024 bwd", 2 * word, [&] { cross_entropy_backward(a, target, {}, lse, loss, c); });
  against_memcpy("embedding 1024 of 1024x1024", 2 * word, [&] { embedding(a, target, 0, m, c); });
  against_memcpy("embedding 1024 of 1024x1024 bwd", 4 * word, [&] { embedding_backward(a, target, 0, m, c); });

  const RandomPart part = RandomPart::whole(1, 2, square);
  against_memcpy("uniform 1M f32", word, [&] { uniform(part, 0, 1, c); });
  against_memcpy("normal 1M f32", word, [&] { normal(part, 0, 1, c); });
  against_memcpy("dropout 1M f32", 2 * word, [&] { dropout(part, a, 0.1, c); });

  Array p = random_array(square), v = Array::empty(square, float32), s = Array::empty(square, float32);
  fill(v, 0), fill(s, 0);
  UpdateTensor sgd_tensor{p, a, {v, {}, {}}, {}, {}}, adam_tensor{p, a, {v, s, {}}, {}, {}};
  sgd_tensor.numbers = {.lr = 1e-6, .beta1 = 0.9};
  adam_tensor.numbers = {.lr = 1e-6, .shrink = 1 - 1e-7, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  against_memcpy("sgd with momentum 1M f32", 5 * word, [&] { update(UpdateRule::kSgd, {&sgd_tensor, 1}); });
  fill(s, 1);
  against_memcpy("adamw 1M f32", 7 * word, [&] { update(UpdateRule::kAdam, {&adam_tensor, 1}); });
}
