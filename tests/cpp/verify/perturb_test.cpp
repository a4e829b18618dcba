#include "holon/verify/perturb.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holon/conformance/values.h"

namespace holon::verify {
namespace {

std::vector<double> moved(const std::vector<double>& values, DType dtype, double terms, uint64_t seed = 1) {
  Array a = conformance::array_of(values, {static_cast<int64_t>(values.size())}, dtype);
  const auto before = conformance::values_of(a);
  perturb(a, seed, terms);
  auto after = conformance::values_of(a);
  for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
  return after;
}

TEST(Perturb, MovesEachNumberByItsRounding) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    const double eps = epsilon_of(dtype);
    for (double d : moved({M_PI, -M_E, 1.7331}, dtype, 1)) {
      EXPECT_NE(d, 0) << name(dtype);
      EXPECT_LE(std::abs(d), 8 * eps) << name(dtype);
    }
  }
}

TEST(Perturb, MovesSumsByThoseOfTheirTerms) {
  const std::vector<double> values{100 * M_PI, 1e-3 * M_PI};
  EXPECT_LT(std::abs(moved(values, DType::kFloat32, 1)[1]), 1e-8);
  // The terms of a small sum may have been as large as its neighbour.
  EXPECT_GT(std::abs(moved(values, DType::kFloat32, 200)[1]), 1e-5);
}

TEST(Perturb, LeavesWhatIsExact) {
  for (double d : moved({0, 1, 0.5, -3, 17, 1024, INFINITY}, DType::kFloat32, 100))
    EXPECT_TRUE(d == 0 || std::isnan(d));
  for (double d : moved({0, 1, -3, 17}, DType::kInt64, 100)) EXPECT_EQ(d, 0);
  for (double d : moved({0, 1, 0.25}, DType::kBFloat16, 1)) EXPECT_EQ(d, 0);
}

TEST(Perturb, FollowsTheSeed) {
  std::vector<double> values(64, M_PI);
  EXPECT_EQ(moved(values, DType::kFloat32, 1, 5), moved(values, DType::kFloat32, 1, 5));
  EXPECT_NE(moved(values, DType::kFloat32, 1, 5), moved(values, DType::kFloat32, 1, 6));
}

}  // namespace
}  // namespace holon::verify
