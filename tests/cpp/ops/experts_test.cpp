// Rows of experts: values by plain loops, and counts that do not fit.
#include <gtest/gtest.h>

#include <cmath>

#include "error_of.h"
#include "holon/internal_ops/experts.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"

namespace holon {
namespace {

constexpr int64_t kRows = 5, kWidth = 3, kHidden = 4, kExperts = 2;

std::vector<float> numbers(int64_t n, int64_t step) {
  std::vector<float> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<float>((i * step) % 11 - 5) / 4);
  return out;
}

struct Operands {
  std::vector<float> x = numbers(2 * kRows * kWidth, 7), gate = numbers(kExperts * kHidden * kWidth, 3),
                     up = numbers(kExperts * kHidden * kWidth, 5), down = numbers(kExperts * kWidth * kHidden, 9);
  Tensor call(const std::vector<int64_t>& counts) const {
    return expert_swiglu(tensor(x, {2, kRows, kWidth}), tensor(gate, {kExperts, kHidden, kWidth}),
                         tensor(up, {kExperts, kHidden, kWidth}), tensor(down, {kExperts, kWidth, kHidden}),
                         tensor(counts, {2, kExperts}));
  }
};

TEST(Experts, EachRowIsOfItsExpert) {
  const Operands o;
  // The experts of the rows of both groups; -1: none.
  const int expert_of[2][kRows] = {{0, 0, 1, 1, 1}, {1, 1, -1, -1, -1}};
  const auto y = to_vector<float>(o.call({2, 3, 0, 2}));
  auto at = [](const std::vector<float>& v, int64_t i) { return static_cast<double>(v[static_cast<size_t>(i)]); };
  for (int64_t g = 0; g < 2; ++g)
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t i = 0; i < kWidth; ++i) {
        double wanted = 0;
        const int e = expert_of[g][r];
        for (int64_t h = 0; e >= 0 && h < kHidden; ++h) {
          double gate = 0, up = 0;
          for (int64_t k = 0; k < kWidth; ++k) {
            const double x = at(o.x, (g * kRows + r) * kWidth + k);
            gate += at(o.gate, (e * kHidden + h) * kWidth + k) * x;
            up += at(o.up, (e * kHidden + h) * kWidth + k) * x;
          }
          wanted += at(o.down, (e * kWidth + i) * kHidden + h) * gate / (1 + std::exp(-gate)) * up;
        }
        EXPECT_NEAR(at(y, (g * kRows + r) * kWidth + i), wanted, 1e-5) << g << " " << r << " " << i;
      }
}

TEST(Experts, CountsThatDoNotFitAreErrors) {
  const Operands o;
  EXPECT_NE(value_error_of([&] {
              o.call({2, 4, 0, 2});
            }).find("expert 1 has 4 rows of group 0, in which 3 are left"),
            std::string::npos);
  EXPECT_NE(value_error_of([&] { o.call({2, 3, -1, 2}); }).find("has -1 rows"), std::string::npos);
  EXPECT_NE(value_error_of([&] { o.call({1, INT64_MAX, 0, 0}); }).find("4 are left"), std::string::npos);
}

TEST(Experts, AGradientOfAnotherShapeIsAnError) {
  const Operands o;
  const Tensor x = tensor(o.x, {2, kRows, kWidth}), gate = tensor(o.gate, {kExperts, kHidden, kWidth}),
               up = tensor(o.up, {kExperts, kHidden, kWidth}), down = tensor(o.down, {kExperts, kWidth, kHidden}),
               counts = tensor(std::vector<int64_t>{2, 3, 0, 2}, {2, kExperts});
  for (const Tensor& dy : {slice(x, 0, 0, 1), slice(x, 1, 0, 3), slice(x, 2, 0, 2)})
    EXPECT_NE(value_error_of([&] { expert_swiglu_backward(dy, x, gate, up, down, counts); }).find("different shapes"),
              std::string::npos);
}

}  // namespace
}  // namespace holon
