// Sums whose bits depend on their terms and their number only: parts of them that ranks could have, sizes of the other
// axes, strides and threads change nothing.
#include "holon/kernels/tree.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/build_choice.h"
#include "holon/kernels/cpu/tree_gemm.h"
#include "holon/kernels/exact_sum.h"
#include "holon/kernels/sum_tree.h"
#include "kernels/same_bits.h"

namespace holon::kernels {
namespace {

Array transposed(const Array& a) {
  Array copied = Array::empty({a.shape[1], a.shape[0]}, a.dtype);
  Array view = a.view({a.shape[1], a.shape[0]}, {a.strides[1], a.strides[0]});
  copy(view, copied);
  return copied.view(a.shape, {1, a.shape[0]});
}

// The definition, for one sum of products.
float tree_of(const std::vector<float>& a, const std::vector<float>& b, size_t begin, size_t n) {
  if (n > kSumLeaf && n % 2 == 0) return tree_of(a, b, begin, n / 2) + tree_of(a, b, begin + n / 2, n / 2);
  float sum = 0;
  for (size_t i = begin; i < begin + n; ++i) sum = tree_gemm().fused ? std::fma(a[i], b[i], sum) : sum + a[i] * b[i];
  return sum;
}

TEST(SumTree, LeavesOfAHalfAreThoseOfTheWhole) {
  for (int64_t n = 1; n < 5000; ++n) {
    const int64_t leaf = leaf_length(n);
    EXPECT_EQ(n % leaf, 0);
    EXPECT_TRUE(std::has_single_bit(static_cast<uint64_t>(subtrees(n))));
    for (int64_t parts = 1; parts <= subtrees(n); parts *= 2)
      EXPECT_EQ(leaf_length(n / parts), leaf) << n << " " << parts;
  }
}

TEST(SumTree, ProductsAreTheDefinition) {
  for (int64_t k : {1, 2, 7, 8, 9, 12, 15, 16, 40, 64, 96, 125, 250, 1024}) {
    Array a = random_array({1, k}), b = random_array({k, 1}), out = Array::empty({1, 1}, DType::kFloat32);
    tree::matmul(a, b, out);
    const std::vector<float> x(a.data<float>(), a.data<float>() + k), y(b.data<float>(), b.data<float>() + k);
    EXPECT_EQ(out.data<float>()[0], tree_of(x, y, 0, to_size(k))) << k;
  }
}

TEST(SumTree, ProductsDoNotDependOnTheOtherRowsAndColumns) {
  for (int64_t k : {5, 16, 48, 100, 512}) {
    const int64_t m = 37, n = 101;
    Array a = random_array({m, k}), b = random_array({k, n}), whole = Array::empty({m, n}, DType::kFloat32);
    tree::matmul(a, b, whole);
    for (auto [m0, m1] : {std::pair{0, 1}, {3, 9}, {5, 37}})
      for (auto [n0, n1] : {std::pair{0, 1}, {1, 33}, {32, 64}, {70, 101}}) {
        Array part = Array::empty({m1 - m0, n1 - n0}, DType::kFloat32);
        const Array columns = b.view({k, n1 - n0}, b.strides, n0);
        const Array want = whole.view(part.shape, whole.strides, m0 * n + n0);
        tree::matmul(rows_of(a, m0, m1), columns, part);
        expect_same_bits(part, want);
        // Any strides, of all three.
        Array turned = Array::empty({n1 - n0, m1 - m0}, DType::kFloat32);
        Array into = turned.view(part.shape, {1, m1 - m0});
        tree::matmul(transposed(rows_of(a, m0, m1)), transposed(columns), into);
        expect_same_bits(into, want);
      }
  }
}

TEST(SumTree, ProductsDoNotDependOnThreads) {
  Array a = random_array({200, 256}), b = random_array({256, 300});
  const int before = omp_get_max_threads();
  std::vector<Array> found;
  for (int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    found.push_back(Array::empty({200, 300}, DType::kFloat32));
    tree::matmul(a, b, found.back());
  }
  omp_set_num_threads(before);
  expect_same_bits(found[0], found[1]);
  expect_same_bits(found[0], found[2]);
}

TEST(SumTree, PartsOfProductsJoin) {
  for (int64_t k : {48, 64, 96, 1000, 1024}) {
    Array dy = random_array({k, 19}), x = random_array({k, 35});
    auto gradient = [&](int64_t begin, int64_t end) {
      Array dw = Array::empty({19, 35}, DType::kFloat32);
      tree::linear_weight_grad(rows_of(dy, begin, end), rows_of(x, begin, end), dw, nullptr, 0);
      return dw;
    };
    expect_parts_to_join(k, gradient(0, k), gradient);
  }
}

TEST(SumTree, PartsOfSumsJoin) {
  for (int64_t rows : {8, 16, 24, 56, 4096}) {
    Array x = random_array({rows, 5, 33});
    for (uint32_t axes : {1u, 3u, 5u, 7u}) {
      auto sum = [&](int64_t begin, int64_t end) {
        Dims shape;
        for (int a = 0; a < 3; ++a)
          if (!(axes >> a & 1)) shape.push_back(x.shape[a]);
        Array out = Array::empty(shape, DType::kFloat32);
        tree::sum(rows_of(x, begin, end), axes, out);
        return out;
      };
      // A part may be as small as halving makes it.
      expect_parts_to_join(rows, rows, sum(0, rows), sum);
    }
  }
}

TEST(SumTree, SumsDoNotDependOnStridesOrThreads) {
  Array x = random_array({1 << 15, 3});
  Array a = Array::empty({3}, DType::kFloat32), b = Array::empty({3}, DType::kFloat32);
  tree::sum(x, 1, a);
  const int before = num_threads();
  set_num_threads(3);
  tree::sum(transposed(x), 1, b);
  set_num_threads(before);
  expect_same_bits(a, b);
}

TEST(SumTree, PartsOfRowsByIndexJoin) {
  constexpr int64_t kRows = 192, kEntries = 11;
  Array x = random_array({kRows, 6});
  std::vector<int64_t> from, to;
  std::uniform_int_distribution<int64_t> entry(0, kEntries - 1);
  for (int64_t i = 0; i < kRows; ++i) from.push_back(i * 6 * 4), to.push_back(i < 100 ? entry(rng) : 3);
  auto sums = [&](int64_t begin, int64_t end) {
    Array out = Array::empty({kEntries, 6}, DType::kFloat32);
    const std::vector<int64_t> at(from.begin(), from.begin() + (end - begin));
    tree::add_rows(rows_of(x, begin, end), at, std::span(to).subspan(to_size(begin), to_size(end - begin)), out, false);
    return out;
  };
  expect_parts_to_join(kRows, sums(0, kRows), sums);
}

TEST(ExactSquares, DoNotDependOnTheOrder) {
  Array x = random_array({10000});
  float* data = x.data<float>();
  data[17] = 3e38f, data[18] = -1e-44f, data[19] = 0, data[20] = 1e-20f;
  auto sum_of = [](const Array& a) {
    std::vector<double> sum(kExactNumbers);
    exact_squares(a, sum);
    return sum;
  };
  const double whole = exact_value(sum_of(x));
  long double expected = 0;
  for (int64_t i = 0; i < x.numel(); ++i) expected += static_cast<long double>(data[i]) * data[i];
  EXPECT_NEAR(whole, static_cast<double>(expected), 1e-15 * static_cast<double>(expected));
  for (int shuffled = 0; shuffled < 5; ++shuffled) {
    std::shuffle(data, data + x.numel(), rng);
    const int64_t cut = 1 + shuffled * 1234;
    std::vector<double> a = sum_of(rows_of(x, 0, cut)), b = sum_of(rows_of(x, cut, x.numel()));
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    EXPECT_EQ(exact_value(a), whole);
  }
}

TEST(ExactSquares, AreExact) {
  Array x = Array::empty({3}, DType::kFloat32);
  float* data = x.data<float>();
  data[0] = 0x1p60f, data[1] = 1, data[2] = 0x1p-60f;
  std::vector<double> sum(kExactNumbers);
  exact_squares(x, sum);
  EXPECT_EQ(exact_value(sum), 0x1p120);
  // What the large square hides is there.
  data[0] = 0;
  std::vector<double> small(kExactNumbers);
  exact_squares(x, small);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] -= small[i];
  EXPECT_EQ(exact_value(sum), 0x1p120);
  EXPECT_EQ(exact_value(small), 1 + 0x1p-120);
  data[1] = std::numeric_limits<float>::infinity();
  exact_squares(x, sum);
  EXPECT_EQ(exact_value(sum), std::numeric_limits<double>::infinity());
  data[2] = std::numeric_limits<float>::quiet_NaN();
  exact_squares(x, sum);
  EXPECT_TRUE(std::isnan(exact_value(sum)));
}

#ifdef HOLON_HAVE_X86_LEVELS
TEST(SumTree, BuildsWithFusedMultiplyAddsHaveTheSameBits) {
  if (instruction_level() < 2) GTEST_SKIP() << "needs AVX-512 and AVX2";
  constexpr int64_t kM = 13, kN = 70, kK = 96;
  Array a = random_array({kM, kK}), b = random_array({kK, kN});
  std::vector<Array> found;
  for (const TreeGemm& g : {avx2::tree_gemm(), avx512::tree_gemm()}) {
    found.push_back(Array::empty({kM, kN}, DType::kFloat32));
    Array panel = Array::empty({kK * g.columns + 16}, DType::kFloat32);
    g.run({kM,
           kN,
           kK,
           1,
           leaf_length(kK),
           1,
           {a.data<float>(), kK, 1},
           {b.data<float>(), kN, 1},
           0,
           found.back().data<float>(),
           kN,
           panel.data<float>(),
           nullptr});
  }
  expect_same_bits(found[0], found[1]);
}
#endif

}  // namespace
}  // namespace holon::kernels
