// Products of matrices on the emulated device: loops, one thread.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "cuda_runtime.h"
#include "holon/kernels/cuda/blas.h"
#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {
namespace {

template <class C>
C load(const void* from, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kFloat16: return static_cast<C>(static_cast<float>(static_cast<const Float16*>(from)[at]));
    case DType::kBFloat16: return static_cast<C>(static_cast<float>(static_cast<const BFloat16*>(from)[at]));
    case DType::kFloat64: return static_cast<C>(static_cast<const double*>(from)[at]);
    default: return static_cast<C>(static_cast<const float*>(from)[at]);
  }
}
template <class C>
void store(void* to, DType dtype, int64_t at, C value) {
  switch (dtype) {
    case DType::kFloat16: static_cast<Float16*>(to)[at] = Float16(static_cast<float>(value)); break;
    case DType::kBFloat16: static_cast<BFloat16*>(to)[at] = BFloat16(static_cast<float>(value)); break;
    case DType::kFloat64: static_cast<double*>(to)[at] = static_cast<double>(value); break;
    default: static_cast<float*>(to)[at] = static_cast<float>(value);
  }
}

// rows x cols, packed row by row.
template <class C>
void pack(const void* from, DType dtype, const Operand& o, int64_t batch, int64_t rows, int64_t cols,
          std::vector<C>& to) {
  to.resize(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j)
      to[static_cast<size_t>(i * cols + j)] =
          load<C>(from, dtype, batch * o.batch_stride + (o.transposed ? j * o.ld + i : i * o.ld + j));
}

template <class C>
C apply(Act act, C x) {
  if (act == Act::kRelu) return x < C(0) ? C(0) : x;
  if (act == Act::kGeluTanh)
    return C(0.5) * x * (C(1) + std::tanh(C(0.7978845608028654) * (x + C(0.044715) * x * x * x)));
  return x;
}

std::atomic<int64_t> sums_made{0};

template <class C>
void run(const Product& p, const void* a, const void* b, const void* c, void* d, const void* bias, void* sums) {
  std::vector<C> left, right, row(static_cast<size_t>(p.n));
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    if (batch == 0 || p.a.batch_stride != 0) pack(a, p.dtype, p.a, batch, p.m, p.k, left);
    if (batch == 0 || p.b.batch_stride != 0) pack(b, p.dtype, p.b, batch, p.k, p.n, right);
    if (p.summed != Summed::kNone) {
      const bool of_a = p.summed == Summed::kA;
      for (int64_t i = 0; i < (of_a ? p.m : p.n); ++i) {
        C sum = 0;
        for (int64_t q = 0; q < p.k; ++q)
          sum += of_a ? left[static_cast<size_t>(i * p.k + q)] : right[static_cast<size_t>(q * p.n + i)];
        store(sums, p.result, i, sum);
      }
    }
    for (int64_t i = 0; i < p.m; ++i) {
      std::fill(row.begin(), row.end(), C(0));
      C* sums = row.data();
      for (int64_t q = 0; q < p.k; ++q) {
        const C x = left[static_cast<size_t>(i * p.k + q)];
        const C* y = right.data() + q * p.n;
        for (int64_t j = 0; j < p.n; ++j) sums[j] += x * y[j];
      }
      for (int64_t j = 0; j < p.n; ++j) {
        const int64_t at = batch * p.d.batch_stride + i * p.d.ld + j;
        C v = static_cast<C>(p.alpha) * sums[j];
        if (p.beta != 0) v += static_cast<C>(p.beta) * load<C>(c, p.result, at);
        if (bias) v += load<C>(bias, p.result, j);
        store(d, p.result, at, apply(p.act, v));
      }
    }
  }
}

}  // namespace

// float64 has no epilogues, so that the ways without them are gone, too.
bool product(const Product& p, const void* a, const void* b, const void* c, void* d, const void* bias, void* sums) {
  const bool summed = p.summed != Summed::kNone;
  if (p.dtype == DType::kFloat64 && (bias || p.act != Act::kNone || summed)) return false;
  if (summed) sums_made.fetch_add(1, std::memory_order_relaxed);
  auto work = [=] {
    p.dtype == DType::kFloat64 ? run<double>(p, a, b, c, d, bias, sums) : run<float>(p, a, b, c, d, bias, sums);
  };
  emulator::enqueue(stream(), work, {"product"});
  return true;
}

// As cuBLASLt: sizes are multiples of 16, and one factor at least is E4M3.
const char* refusal_of(const ScaledProduct& p) {
  if (p.m % 16 || p.n % 16 || p.k % 16) return "sizes are not multiples of 16";
  return p.a == float8_e5m2 && p.b == float8_e5m2 ? "both factors are float8_e5m2" : nullptr;
}

const char* scaled_product(const ScaledProduct& p, const void* a, const void* b, const float* scale_a,
                           const float* scale_b, void* d) {
  // By the formats' definitions: results are compared with those of the host's conversions.
  static auto number = [](uint8_t bits, DType dtype) {
    const int mantissa = dtype == float8_e4m3fn ? 3 : 2, bias = dtype == float8_e4m3fn ? 7 : 15;
    const int exponent = (bits & 0x7f) >> mantissa, fraction = bits & ((1 << mantissa) - 1);
    if (dtype == float8_e4m3fn ? (bits & 0x7f) == 0x7f : exponent == 31 && fraction) return std::nanf("");
    if (dtype == float8_e5m2 && exponent == 31) return bits & 0x80 ? -HUGE_VALF : HUGE_VALF;
    const float v = exponent ? std::ldexp(1.0f + std::ldexp(static_cast<float>(fraction), -mantissa), exponent - bias)
                             : std::ldexp(static_cast<float>(fraction), 1 - bias - mantissa);
    return bits & 0x80 ? -v : v;
  };
  emulator::enqueue(stream(), [=] {
    const auto *left = static_cast<const uint8_t*>(a), *right = static_cast<const uint8_t*>(b);
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int64_t q = 0; q < p.k; ++q) sum += number(left[i * p.k + q], p.a) * number(right[j * p.k + q], p.b);
        store(d, p.result, i * p.n + j, sum * *scale_a * *scale_b);
      }
  });
  return nullptr;
}

}  // namespace holon::kernels::cuda

// Since the last call: products that have made sums of an operand, too.
extern "C" int64_t emulated_summed_products() { return holon::kernels::cuda::sums_made.exchange(0); }
