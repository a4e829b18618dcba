// Products with what follows them against the kernels one after the other.
#include "holon/kernels/epilogue.h"

#include <algorithm>
#include <limits>

#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/gemm.h"
#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

Array noise(const Dims& shape, DType dtype, uint64_t seed, bool turned = false) {
  Noise n{seed};
  Dims lying = shape;
  if (turned) std::swap(lying[shape.size() - 1], lying[shape.size() - 2]);
  Array x = Array::empty(lying, dtype);
  if (turned)
    std::swap(x.shape[shape.size() - 1], x.shape[shape.size() - 2]),
        std::swap(x.strides[shape.size() - 1], x.strides[shape.size() - 2]);
  each(shape, [&](const Dims& at) { put(x, at, n.next(-1, 1)); });
  return x;
}

void expect_near(const Array& a, const Array& b, double tolerance, const std::string& what) {
  ASSERT_TRUE(a.shape == b.shape) << what;
  double most = 0;
  each(a.shape, [&](const Dims& at) { most = std::max(most, std::abs(get(a, at) - get(b, at))); });
  EXPECT_LE(most, tolerance) << what;
}

struct Size {
  Dims rows;  // leading axes of x
  int64_t k, n;
};
// Thin, odd, several blocks of k, of rows and of columns.
const Size kSizes[] = {{{1}, 1, 1},         {{5}, 3, 7},      {{3, 7}, 40, 33}, {{130}, 100, 50},
                       {{2, 100}, 800, 49}, {{97}, 30, 1500}, {{0}, 4, 3},      {{4}, 0, 3}};

double tolerance(DType t, int64_t k) {
  return (t == float64 ? 1e-14 : t == float32 ? 2e-6 : 3e-2) * (1 + std::sqrt(static_cast<double>(k)));
}

TEST(Epilogue, EqualsTheKernelsOneByOne) {
  for (int threads : {1, 2}) {
    set_num_threads(threads);
    for (DType t : {float32, float64, bfloat16})
      for (const Size& s : kSizes)
        for (bool turned : {false, true})
          for (Then then : {Then::kRelu, Then::kGelu, Then::kGeluTanh, Then::kAdd, Then::kMul, Then::kReluBackward}) {
            Dims in = s.rows, result = s.rows;
            in.push_back(s.k);
            result.push_back(s.n);
            const bool pair = then >= Then::kAdd;
            const std::string what = std::string(name(t)) + result.str() + " k " + std::to_string(s.k) + " then " +
                std::to_string(static_cast<int>(then));
            Array x = noise(in, t, 1, turned && in.size() > 1), w = noise({s.n, s.k}, t, 2), bias = noise({s.n}, t, 3),
                  other = noise(result, t, 4, turned && result.size() > 1);
            Array product = Array::empty(result, t), expected = Array::empty(result, t), got = Array::empty(result, t);
            auto follow = [&] {
              switch (then) {
                case Then::kRelu: return unary(UnaryOp::Relu, product, expected);
                case Then::kGelu: return unary(UnaryOp::Gelu, product, expected);
                case Then::kGeluTanh: return unary(UnaryOp::GeluTanh, product, expected);
                case Then::kAdd: return binary(BinaryOp::Add, product, other, expected);
                case Then::kMul: return binary(BinaryOp::Mul, product, other, expected);
                case Then::kReluBackward: return binary(BinaryOp::ReluBackward, product, other, expected);
              }
            };
            linear(x, w, &bias, product);
            follow();
            linear_then(x, w, &bias, then, pair ? &other : nullptr, got);
            expect_near(got, expected, tolerance(t, s.k), "linear " + what);
            if (!pair || in.size() < 2) continue;
            Array b = noise({s.k, s.n}, t, 5, turned);
            matmul(x, b, product);
            follow();
            matmul_then(x, b, then, &other, got);
            expect_near(got, expected, tolerance(t, s.k), "matmul " + what);
            // Into the other operand's own memory.
            Array over = contiguous(other).view(result, contiguous_strides(result));
            if (over.storage.get() == other.storage.get()) {
              over.storage = allocate_storage(std::max<size_t>(over.nbytes(), 1));
              over.offset = 0;
              copy(other, over);
            }
            matmul_then(x, b, then, &over, over);
            expect_near(over, expected, tolerance(t, s.k), "in place " + what);
          }
  }
  set_num_threads(1);
}

TEST(Epilogue, GeluAndItsSlope) {
  on_every_isa([] {
    for (DType t : {float32, float64, bfloat16})
      for (bool by_tanh : {false, true})
        for (const Size& s : kSizes) {
          Dims in = s.rows, result = s.rows;
          in.push_back(s.k);
          result.push_back(s.n);
          Array x = noise(in, t, 1), w = noise({s.n, s.k}, t, 2), bias = noise({s.n}, t, 3);
          Array product = Array::empty(result, t), value = Array::empty(result, t), bend = Array::empty(result, t),
                ones = Array::empty(result, t);
          Array y = Array::empty(result, t), slope = Array::empty(result, t);
          fill(ones, 1.0);
          linear(x, w, &bias, product);
          unary(by_tanh ? UnaryOp::GeluTanh : UnaryOp::Gelu, product, value);
          binary(by_tanh ? BinaryOp::GeluTanhBackward : BinaryOp::GeluBackward, ones, product, bend);
          linear_gelu(x, w, &bias, by_tanh, y, slope);
          const std::string what = std::string(name(t)) + result.str();
          expect_near(y, value, tolerance(t, s.k), "gelu " + what);
          expect_near(slope, bend, tolerance(t, s.k), "slope " + what);
        }
  });
}

// Far from 0, at 0 and at numbers that are none.
TEST(Epilogue, GeluAtItsEnds) {
  on_every_isa([] {
    const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    const std::vector<double> at{0.0,  -0.0, 1e-30, 5.0, -5.0, 9.5, -9.5, 12, -12, 100,
                                 -100, 1e30, -1e30, inf, nan,  0.3, -0.3, 1,  -1};
    const int64_t n = static_cast<int64_t>(at.size());
    Array x = Array::empty({n, 1}, float32), one = Array::empty({1, 1}, float32), value = Array::empty({n, 1}, float32),
          y = Array::empty({n, 1}, float32), slope = Array::empty({n, 1}, float32);
    for (int64_t i = 0; i < n; ++i) x.data<float>()[i] = static_cast<float>(at[static_cast<size_t>(i)]);
    fill(one, 1.0);
    unary(UnaryOp::Gelu, x, value);
    linear_gelu(x, one, nullptr, false, y, slope);
    for (int64_t i = 0; i < n; ++i) {
      const float want = value.data<float>()[i], got = y.data<float>()[i];
      if (std::isnan(want))
        EXPECT_TRUE(std::isnan(got)) << at[static_cast<size_t>(i)];
      else if (std::isinf(want))
        EXPECT_EQ(got, want);
      else
        EXPECT_NEAR(got, want, 2e-7 * std::max(1.0f, std::abs(want))) << at[static_cast<size_t>(i)];
    }
  });
}

}  // namespace
}  // namespace holon::kernels::testing
