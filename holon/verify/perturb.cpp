#include "holon/verify/perturb.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "holon/conformance/values.h"
#include "holon/kernels/copy.h"

namespace holon::verify {

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 0x1p-52;
    case DType::kFloat32: return 0x1p-23;
    case DType::kFloat16: return 0x1p-10;
    case DType::kBFloat16: return 0x1p-7;
    default: return is_float8(dtype) ? 0x1p-3 : 0;
  }
}

namespace {

// Of the half of its digits that a float has at most; of two bytes: a power of two.
bool has_few_digits(double x, bool narrow) {
  return (std::bit_cast<uint64_t>(x) & ((uint64_t{1} << (narrow ? 52 : 42)) - 1)) == 0;
}

}  // namespace

void perturb(Array& a, uint64_t seed, double terms) {
  const double eps = is_float8(a.dtype) ? 0 : epsilon_of(a.dtype);
  const bool narrow = size_bytes(a.dtype) == 2;  // sums are made in float32, and rounded
  if (eps == 0 || !a.defined() || !a.device.is_host() || a.numel() == 0) return;
  std::vector<double> values = conformance::values_of(a);
  double squares = 0;
  for (double x : values) squares += std::isfinite(x) ? x * x : 0;
  const double rms = std::sqrt(squares / static_cast<double>(values.size()));
  const bool sum = terms > 1.5;
  const double of_sum = sum && !narrow ? std::sqrt(terms / 2) : 1, floor = sum ? rms / 2 : 0;
  for (size_t i = 0; i < values.size(); ++i) {
    double& x = values[i];
    if (!std::isfinite(x) || has_few_digits(x, narrow)) continue;
    const double sign = conformance::mix(seed, i) & 1 ? 1 : -1;
    x += sign * eps * of_sum * (std::abs(x) + floor);
  }
  kernels::copy(conformance::array_of(values, a.shape, a.dtype), a);
}

}  // namespace holon::verify
