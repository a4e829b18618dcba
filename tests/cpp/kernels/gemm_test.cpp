#include "holon/kernels/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "holon/base/error.h"
#include "holon/kernels/cpu/build_choice.h"
#include "holon/kernels/cpu/small_gemm.h"

namespace holon::kernels {
namespace {

std::mt19937 rng(7);

// Every element of an array in row-major order, as double, and back.
template <class F>
void each(const Array& x, F&& f) {
  Dims index = Dims::filled(x.ndim(), 0);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t at = 0;
    for (int a = 0; a < x.ndim(); ++a) at += index[a] * x.strides[a];
    f(at);
    for (int a = x.ndim() - 1; a >= 0 && ++index[a] == x.shape[a]; --a) index[a] = 0;
  }
}

std::vector<double> values(const Array& x) {
  std::vector<double> v;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    each(x, [&](int64_t at) { v.push_back(static_cast<double>(static_cast<C>(x.data<T>()[at]))); });
  });
  return v;
}

void fill(const Array& x) {
  std::uniform_real_distribution<float> real(-1, 1);
  std::uniform_int_distribution<int> whole(0, 7);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    each(x, [&](int64_t at) {
      if constexpr (std::is_integral_v<T>)
        x.data<T>()[at] = static_cast<T>(whole(rng) - (std::is_signed_v<T> ? 3 : 0));
      else
        x.data<T>()[at] = T(real(rng));
    });
  });
}

enum class Layout { kRows, kColumns, kPadded, kEverySecond };

// An array [..., rows, cols] whose matrices are laid out as asked.
Array make(Dims shape, DType dtype, Layout layout) {
  const int n = shape.size();
  Array x;
  if (layout == Layout::kRows) {
    x = Array::empty(shape, dtype);
  } else if (layout == Layout::kColumns) {
    std::swap(shape[n - 1], shape[n - 2]);
    x = Array::empty(shape, dtype);
    std::swap(x.shape[n - 1], x.shape[n - 2]);
    std::swap(x.strides[n - 1], x.strides[n - 2]);
  } else {
    Dims wide = shape;
    wide[n - 1] = layout == Layout::kPadded ? shape[n - 1] + 3 : shape[n - 1] * 2;
    x = Array::empty(wide, dtype);
    x.shape = shape;
    if (layout == Layout::kEverySecond) x.strides[n - 1] = 2;
    if (layout == Layout::kPadded) x.offset = 1;
  }
  fill(x);
  return x;
}

std::vector<double> reference(const Array& a, const Array& b, const Array& out, const std::vector<double>& before,
                              double alpha, double beta) {
  std::vector<double> va = values(a), vb = values(b), result;
  const int n = out.ndim();
  const int64_t rows = out.shape[n - 2], cols = out.shape[n - 1], inner = a.shape.back();
  const int64_t batches = rows * cols == 0 ? 0 : out.numel() / (rows * cols);
  for (int64_t at = 0; at < batches; ++at) {
    auto base = [&](const Array& x) {
      int64_t left = at, offset = 0, step = x.shape[x.ndim() - 1] * x.shape[x.ndim() - 2];
      for (int i = n - 3; i >= 0; --i) {
        const int64_t index = left % out.shape[i];
        left /= out.shape[i];
        const int axis = i - n + x.ndim();
        if (axis < 0) continue;
        if (x.shape[axis] != 1) offset += index * step;
        step *= x.shape[axis];
      }
      return offset;
    };
    const int64_t oa = base(a), ob = base(b);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < inner; ++p) sum += va[oa + i * inner + p] * vb[ob + p * cols + j];
        result.push_back(alpha * sum + (beta != 0 ? beta * before[result.size()] : 0));
      }
  }
  return result;
}

double tolerance(DType dtype, int64_t k) {
  const double size = std::sqrt(static_cast<double>(k) + 1);
  switch (dtype) {
    case DType::kFloat32: return 1e-6 * size;
    case DType::kFloat64: return 1e-14 * size;
    case DType::kFloat16: return 2e-3 * size;
    case DType::kBFloat16: return 1.6e-2 * size;
    default: return 0;
  }
}

void check(const Array& a, const Array& b, Array& out, double alpha = 1, double beta = 0) {
  const std::vector<double> before = values(out);
  const std::vector<double> expected = reference(a, b, out, before, alpha, beta);
  if (beta == 0 && is_floating(out.dtype))
    visit_dtype(out.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (!std::is_integral_v<T>)
        each(out, [&](int64_t at) { out.data<T>()[at] = T(std::numeric_limits<float>::quiet_NaN()); });
    });
  matmul(a, b, out, alpha, beta);
  const std::vector<double> found = values(out);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], expected[i], tolerance(out.dtype, a.shape.back()) * (1 + std::abs(alpha)))
        << "element " << i << " of " << a.shape.str() << a.strides.str() << " @ " << b.shape.str() << b.strides.str()
        << " -> " << out.strides.str() << " " << name(out.dtype) << " alpha " << alpha << " beta " << beta;
}

constexpr Layout kLayouts[] = {Layout::kRows, Layout::kColumns, Layout::kPadded, Layout::kEverySecond};

TEST(Matmul, EveryLayout) {
  const int64_t sizes[][3] = {{1, 1, 1},   {2, 3, 4},    {4, 4, 4},    {1, 33, 70},  {33, 1, 70},   {5, 17, 1},
                              {7, 10, 96}, {32, 32, 32}, {37, 65, 70}, {70, 80, 90}, {130, 10, 515}};
  for (DType dtype : {float32, float64})
    for (auto [m, n, k] : sizes)
      for (Layout la : kLayouts)
        for (Layout lb : kLayouts)
          for (Layout lc : kLayouts) {
            if (lc != Layout::kRows && (la == Layout::kPadded || lb == Layout::kPadded)) continue;
            Array a = make({m, k}, dtype, la), b = make({k, n}, dtype, lb), c = make({m, n}, dtype, lc);
            check(a, b, c);
            if (lc != Layout::kPadded) check(a, b, c, 0.5, -2);
            if (HasFatalFailure()) return;
          }
}

TEST(Matmul, EveryDtype) {
  for (int d = 0; d < kComputedDTypeCount; ++d) {
    const DType dtype = static_cast<DType>(d);
    if (dtype == DType::kBool) continue;
    for (Layout layout : kLayouts) {
      Array a = make({2, 9, 20}, dtype, layout), b = make({20, 12}, dtype, layout), c = make({2, 9, 12}, dtype, layout);
      if (dtype == DType::kInt8 || dtype == DType::kUInt8) {
        // Small sums, so that the reference does not wrap.
        each(a, [&](int64_t at) { a.data<int8_t>()[at] = static_cast<int8_t>(a.data<int8_t>()[at] & 1); });
        each(b, [&](int64_t at) { b.data<int8_t>()[at] = static_cast<int8_t>(b.data<int8_t>()[at] & 3); });
      }
      check(a, b, c);
      check(a, b, c, 1, 1);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Matmul, IntegersWrapAndBoolsAreOrOfAnd) {
  Array a = Array::empty({1, 2}, int8), b = Array::empty({2, 1}, int8), c = Array::empty({1, 1}, int8);
  a.data<int8_t>()[0] = 100, a.data<int8_t>()[1] = 100;
  b.data<int8_t>()[0] = 1, b.data<int8_t>()[1] = 1;
  matmul(a, b, c);
  EXPECT_EQ(*c.data<int8_t>(), static_cast<int8_t>(200));
  Array x = Array::empty({2, 2}, boolean), y = Array::empty({2, 2}, boolean), z = Array::empty({2, 2}, boolean);
  const bool vx[] = {true, false, true, true}, vy[] = {true, false, true, false}, vz[] = {true, false, true, false};
  std::copy(vx, vx + 4, x.data<bool>());
  std::copy(vy, vy + 4, y.data<bool>());
  matmul(x, y, z);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(z.data<bool>()[i], vz[i]) << i;
}

TEST(Matmul, LeadingAxesBroadcast) {
  struct Case {
    Dims a, b, out;
  };
  const Case cases[] = {{{3, 4, 5}, {5, 6}, {3, 4, 6}},
                        {{4, 5}, {3, 5, 6}, {3, 4, 6}},
                        {{2, 3, 4, 5}, {2, 3, 5, 6}, {2, 3, 4, 6}},
                        {{2, 1, 4, 5}, {3, 5, 6}, {2, 3, 4, 6}},
                        {{1, 4, 5}, {7, 1, 5, 6}, {7, 1, 4, 6}},
                        {{2, 3, 1, 8}, {8, 9}, {2, 3, 1, 9}},
                        {{5, 1, 1, 8}, {1, 3, 8, 9}, {5, 3, 1, 9}},
                        {{4, 70, 80}, {80, 90}, {4, 70, 90}}};
  for (DType dtype : {float32, float64, int32, bfloat16})
    for (const Case& c : cases)
      for (Layout layout : kLayouts) {
        Array a = make(c.a, dtype, layout), b = make(c.b, dtype, layout), out = make(c.out, dtype, Layout::kRows);
        check(a, b, out);
        // Heads between the axes, as attention has them: [b, t, h, d] seen as [b, h, t, d].
        if (c.a.size() == 4 && c.b.size() == 4) {
          std::swap(a.shape[1], a.shape[2]), std::swap(a.strides[1], a.strides[2]);
          Array wide = make({a.shape[0], a.shape[1], a.shape[2], 6}, dtype, Layout::kRows);
          Array other = make({a.shape[0], 1, a.shape[3], 6}, dtype, layout);
          check(a, other, wide);
        }
        if (HasFatalFailure()) return;
      }
}

TEST(Matmul, ExpandedOperands) {
  Array a = make({1, 5}, float32, Layout::kRows), b = make({5, 6}, float32, Layout::kRows);
  a = a.view({7, 5}, {0, 1});
  Array c = make({7, 6}, float32, Layout::kRows);
  check(a, b, c);
  // Rows that overlap, as of a sliding window.
  Array s = make({1, 120}, float32, Layout::kRows).view({80, 40}, {1, 1});
  Array w = make({40, 100}, float32, Layout::kRows), o = make({80, 100}, float32, Layout::kRows);
  check(s, w, o);
}

TEST(Matmul, EmptyAndZeroInner) {
  for (DType dtype : {float32, float64, int64, float16, boolean}) {
    Array a = Array::empty({3, 0}, dtype), b = Array::empty({0, 4}, dtype), c = make({3, 4}, dtype, Layout::kRows);
    matmul(a, b, c);
    for (double v : values(c)) EXPECT_EQ(v, 0);
    Array e = Array::empty({0, 5}, dtype), f = make({5, 4}, dtype, Layout::kRows), g = Array::empty({0, 4}, dtype);
    matmul(e, f, g);
    Array h = Array::empty({0, 2, 5}, dtype), i = Array::empty({0, 2, 4}, dtype);
    matmul(h, f, i);
  }
}

TEST(Matmul, ZeroInnerWithAFinish) {
  Array x = Array::empty({2, 3, 0}, float32), w = Array::empty({5, 0}, float32),
        y = make({2, 3, 5}, float32, Layout::kRows);
  int64_t seen = 0;
  Finish count{[](void* state, int64_t, int64_t m, int64_t, int64_t n) { *static_cast<int64_t*>(state) += m * n; },
               &seen};
  linear(x, w, nullptr, y, count);
  EXPECT_EQ(seen, 30);
  for (double v : values(y)) EXPECT_EQ(v, 0);
  Array dy = make({2, 3, 5}, float32, Layout::kRows), dw = Array::empty({5, 0}, float32),
        db = make({5}, float32, Layout::kRows);
  linear_weight_grad(dy, x, dw, &db);
  const std::vector<double> from = values(dy), sums = values(db);
  for (size_t j = 0; j < 5; ++j) {
    double sum = 0;
    for (size_t i = 0; i < 6; ++i) sum += from[i * 5 + j];
    EXPECT_NEAR(sums[j], sum, 1e-5);
  }
}

TEST(Matmul, ShapesThatDoNotFitAreAnError) {
  Array a = Array::empty({3, 4}, float32), b = Array::empty({5, 6}, float32), c = Array::empty({3, 6}, float32);
  EXPECT_THROW(matmul(a, b, c), Error);
  Array d = Array::empty({4, 6}, float64);
  EXPECT_THROW(matmul(a, d, c), Error);
}

TEST(Matmul, ManyThreads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(3);
  for (auto [m, n, k] : {std::array<int64_t, 3>{200, 90, 40}, {20, 300, 100}, {300, 9, 200}, {129, 130, 131}}) {
    Array a = make({m, k}, float64, Layout::kRows), b = make({k, n}, float64, Layout::kColumns);
    Array c = make({m, n}, float64, Layout::kRows);
    check(a, b, c);
    Array x = make({m, k}, float32, Layout::kRows), y = make({k, n}, float32, Layout::kColumns);
    Array z = make({m, n}, float32, Layout::kRows);
    check(x, y, z);
  }
  Array a = make({7, 30, 50}, float32, Layout::kRows), b = make({7, 50, 40}, float32, Layout::kColumns);
  Array c = make({7, 30, 40}, float32, Layout::kRows);
  check(a, b, c);
  omp_set_num_threads(before);
}

// The builds for other instruction sets that this machine can run give the same results.
TEST(SmallGemm, EveryBuild) {
  std::vector<SmallGemm> builds = {base::small_gemm()};
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() >= 1) builds.push_back(avx2::small_gemm());
  if (instruction_level() >= 2) builds.push_back(avx512::small_gemm());
#endif
  auto pack = []() -> void* {
    alignas(64) static char buffer[kPackBytes];
    return buffer;
  };
  const int64_t sizes[] = {1, 2, 3, 5, 8, 13, 16, 31, 48, 65, 100};
  std::uniform_int_distribution<int> pick(0, 10), coin(0, 1);
  for (const SmallGemm& build : builds)
    for (int round = 0; round < 300; ++round) {
      const int64_t m = sizes[pick(rng)], n = sizes[pick(rng)], k = round % 50 == 0 ? 700 : sizes[pick(rng)];
      auto run = [&]<class T>(T, auto function, double limit) {
        const DType dtype = DTypeOf<T>::value;
        Array a = make({m, k}, dtype, coin(rng) ? Layout::kRows : Layout::kColumns);
        Array b = make({k, n}, dtype, kLayouts[pick(rng) % 4]), c = make({m, n}, dtype, Layout::kRows);
        Array bias = make({1, n}, dtype, Layout::kRows);
        const bool with_bias = coin(rng);
        const T beta = coin(rng) ? T(0) : T(0.5);
        std::vector<double> expected = reference(a, b, c, values(c), 2, beta);
        function({m, n, k, T(2), a.data<T>(), a.strides[0], a.strides[1], b.data<T>(), b.strides[0], b.strides[1], beta,
                  c.data<T>(), n, with_bias ? bias.data<T>() : nullptr, pack});
        std::vector<double> found = values(c);
        for (size_t i = 0; i < found.size(); ++i)
          ASSERT_NEAR(found[i], expected[i] + (with_bias ? bias.data<T>()[i % n] : 0), limit * std::sqrt(k + 1.0))
              << build.vector_bytes << " bytes, " << m << " x " << n << " x " << k;
      };
      if (m * k <= 100 && n * 4 <= build.vector_bytes) {
        Array a = make({m, k}, float32, Layout::kPadded), b = make({k, n}, float32, Layout::kPadded);
        Array c = make({m, n}, float32, Layout::kPadded);
        std::vector<double> expected = reference(a, b, c, {}, 1, 0);
        build.tiny_f32(a.data<float>(), a.strides[0], b.data<float>(), b.strides[0], c.data<float>(), c.strides[0], m,
                       n, k);
        std::vector<double> found = values(c);
        for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-5);
      }
      run(float{}, build.f32, 4e-6);
      run(double{}, build.f64, 1e-14);
      if (HasFatalFailure()) return;
    }
}

TEST(Linear, BiasAndLeadingAxes) {
  for (DType dtype : {float32, float64, float16, bfloat16, int32})
    for (const Dims& lead : {Dims{}, Dims{3}, Dims{2, 5}, Dims{100}})
      for (auto [n, k] : {std::pair<int64_t, int64_t>{10, 64}, {1, 7}, {129, 130}}) {
        Dims shape = lead, out_shape = lead;
        shape.push_back(k), out_shape.push_back(n);
        Array x = Array::empty(shape, dtype), w = make({n, k}, dtype, Layout::kRows),
              out = Array::empty(out_shape, dtype);
        Array bias = Array::empty({n}, dtype);
        fill(x), fill(bias);
        for (const Array* with : {static_cast<const Array*>(nullptr), static_cast<const Array*>(&bias)}) {
          linear(x, w, with, out);
          std::vector<double> vx = values(x), vw = values(w), vb = values(bias), found = values(out);
          for (size_t i = 0; i < found.size(); ++i) {
            double sum = with ? vb[i % n] : 0;
            for (int64_t p = 0; p < k; ++p) sum += vx[i / n * k + p] * vw[i % n * k + p];
            ASSERT_NEAR(found[i], sum, tolerance(dtype, k) * 2) << name(dtype) << shape.str() << n;
          }
        }
      }
}

TEST(Linear, WeightGrad) {
  for (DType dtype : {float32, float64, bfloat16})
    for (int axes = 1; axes <= 3; ++axes)
      for (double beta : {0.0, 1.0}) {
        const int64_t n = 10, k = 33;
        Dims dy_shape, x_shape;
        for (int i = 1; i < axes; ++i) dy_shape.push_back(20), x_shape.push_back(20);
        dy_shape.push_back(n), x_shape.push_back(k);
        Array dy = Array::empty(dy_shape, dtype), x = Array::empty(x_shape, dtype);
        Array dw = make({n, k}, dtype, Layout::kRows), db = Array::empty({n}, dtype);
        fill(dy), fill(x), fill(db);
        if (axes == 3) std::swap(x.strides[0], x.strides[1]);  // no view as a matrix
        std::vector<double> vdy = values(dy), vx = values(x), ew = values(dw), eb = values(db);
        const int64_t rows = dy.numel() / n;
        for (int64_t j = 0; j < n; ++j) {
          eb[j] *= beta;
          for (int64_t i = 0; i < rows; ++i) eb[j] += vdy[i * n + j];
          for (int64_t p = 0; p < k; ++p) {
            ew[j * k + p] *= beta;
            for (int64_t i = 0; i < rows; ++i) ew[j * k + p] += vdy[i * n + j] * vx[i * k + p];
          }
        }
        linear_weight_grad(dy, x, dw, &db, beta);
        std::vector<double> fw = values(dw), fb = values(db);
        for (size_t i = 0; i < fw.size(); ++i)
          ASSERT_NEAR(fw[i], ew[i], tolerance(dtype, rows) * 2) << name(dtype) << axes;
        for (size_t i = 0; i < fb.size(); ++i)
          ASSERT_NEAR(fb[i], eb[i], tolerance(dtype, rows) * 2) << name(dtype) << axes;
      }
}

// The bias's gradient comes with the product where dy is packed for it, in several blocks of rows and columns.
TEST(Linear, WeightGradOfBlocks) {
  for (int threads : {1, 2}) {
    omp_set_num_threads(threads);
    for (auto [rows, n, k] : {std::array<int64_t, 3>{900, 203, 61}, {400, 30, 700}, {1, 100, 100}, {777, 9, 1400}}) {
      Array dy = make({rows, n}, float32, Layout::kRows), x = make({rows, k}, float32, Layout::kPadded);
      Array dw = Array::empty({n, k}, float32), db = Array::empty({n}, float32);
      Array dw_of_double = Array::empty({n, k}, float64), wide_dy = Array::empty({rows, n}, float64),
            wide_x = Array::empty({rows, k}, float64);
      std::vector<double> vdy = values(dy), vx = values(x);
      std::copy(vdy.begin(), vdy.end(), wide_dy.data<double>());
      std::copy(vx.begin(), vx.end(), wide_x.data<double>());
      Array db_of_double = Array::empty({n}, float64);
      linear_weight_grad(wide_dy, wide_x, dw_of_double, &db_of_double);
      linear_weight_grad(dy, x, dw, &db);
      for (int64_t i = 0; i < n * k; ++i)
        ASSERT_NEAR(dw.data<float>()[i], dw_of_double.data<double>()[i], 1e-4) << rows << " " << n;
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(db.data<float>()[i], db_of_double.data<double>()[i], 1e-4) << rows << " " << n;
      // Once more, on top of half of it.
      linear_weight_grad(dy, x, dw, &db, 0.5);
      for (int64_t i = 0; i < n * k; ++i)
        ASSERT_NEAR(dw.data<float>()[i], 1.5 * dw_of_double.data<double>()[i], 2e-4) << rows << " " << n;
      for (int64_t i = 0; i < n; ++i)
        ASSERT_NEAR(db.data<float>()[i], 1.5 * db_of_double.data<double>()[i], 2e-4) << rows << " " << n;
    }
  }
  omp_set_num_threads(1);
}

// Own products in blocks, in each build: all orders of a and b, sizes that fill no block; blocks are told of once.
template <class T>
void check_blocks(const SmallGemm& build, void (*run)(const SmallGemm&, const GemmArgs<T>&)) {
  static std::vector<std::byte> memory(kPackBytes + 64);
  auto pack = []() -> void* {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
  };
  for (auto [m, n, k] : {std::array<int64_t, 3>{201, 147, 801}, {17, 1000, 385}, {100, 700, 33}, {300, 65, 16}})
    for (int lie = 0; lie < 4; ++lie) {
      const DType t = std::is_same_v<T, float> ? float32 : float64;
      Array a = make({m, k}, t, lie & 1 ? Layout::kColumns : Layout::kRows),
            b = make({k, n}, t, lie & 2 ? Layout::kColumns : Layout::kRows);
      Array c = make({m, n}, t, Layout::kPadded), bias = make({1, n}, t, Layout::kRows);
      const std::vector<double> expected = reference(a, b, c, values(c), 0.5, 2);
      std::vector<T> sums(static_cast<size_t>(m));
      std::vector<int> told(static_cast<size_t>(m * n));
      struct State {
        std::vector<int>* told;
        int64_t n;
      } state{&told, n};
      GemmArgs<T> g{m,
                    n,
                    k,
                    T(0.5),
                    a.data<T>(),
                    a.strides[0],
                    a.strides[1],
                    b.data<T>(),
                    b.strides[0],
                    b.strides[1],
                    T(2),
                    c.data<T>(),
                    c.strides[0],
                    bias.data<T>(),
                    pack};
      g.row0 = 0, g.state = &state, g.row_sums = sums.data();
      g.done = [](void* s, int64_t i, int64_t rows, int64_t j, int64_t columns) {
        auto* at = static_cast<State*>(s);
        for (int64_t r = i; r < i + rows; ++r)
          for (int64_t q = j; q < j + columns; ++q) ++(*at->told)[static_cast<size_t>(r * at->n + q)];
      };
      run(build, g);
      const std::vector<double> got = values(c), va = values(a), vb = values(bias);
      const double near = (t == float32 ? 1e-6 : 1e-14) * static_cast<double>(k);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i] + vb[i % static_cast<size_t>(n)], near) << m << " " << n << " " << lie;
      for (int64_t i = 0; i < m; ++i) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p) sum += va[static_cast<size_t>(i * k + p)];
        ASSERT_NEAR(sums[static_cast<size_t>(i)], sum, near);
      }
      EXPECT_EQ(std::count(told.begin(), told.end(), 1), m * n);
    }
}

TEST(SmallGemm, BlocksInEveryBuild) {
  std::vector<SmallGemm> builds{base::small_gemm()};
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() >= 1) builds.push_back(avx2::small_gemm());
  if (instruction_level() >= 2) builds.push_back(avx512::small_gemm());
#endif
  for (auto& build : builds) {
    check_blocks<float>(build, [](const SmallGemm& s, const GemmArgs<float>& g) { s.f32(g); });
    check_blocks<double>(build, [](const SmallGemm& s, const GemmArgs<double>& g) { s.f64(g); });
  }
}

}  // namespace
}  // namespace holon::kernels
