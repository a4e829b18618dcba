#include "holon/kernels/exact_sum.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"

namespace holon::kernels {

namespace {

constexpr int kDigits = static_cast<int>(kExactNumbers) - 1;
constexpr int kLowest = -320;  // the exponent of the first digit's unit: squares are multiples of 2^-298
constexpr int64_t kBlock = 1024;
constexpr int64_t kGrain = 1 << 16;

struct Exact {
  std::array<int64_t, kDigits> digits{};
  double not_finite = 0;

  // Pre: v is finite and a multiple of 2^-298.
  void add(double v) {
    if (v == 0) return;
    int exponent;
    const double mantissa = std::frexp(v, &exponent);
    auto m = static_cast<__int128>(std::ldexp(mantissa, 53));
    int at = exponent - 53 - kLowest;
    if (at < 0) m >>= -at, at = 0;  // digits of 0
    const bool negative = m < 0;
    if (negative) m = -m;
    m <<= at % 32;
    for (int d = at / 32; m != 0; ++d, m >>= 32) {
      const auto digit = static_cast<int64_t>(m & 0xffffffff);
      at_index(digits, d) += negative ? -digit : digit;
    }
  }
  // Each digit in [0, 2^32). Pre: the sum is not negative.
  void carry() {
    for (int d = 0; d + 1 < kDigits; ++d) {
      const int64_t over = at_index(digits, d) >> 32;
      at_index(digits, d) -= over * (int64_t{1} << 32);
      at_index(digits, d + 1) += over;
    }
  }
  void add(const Exact& o) {
    for (int d = 0; d < kDigits; ++d) at_index(digits, d) += at_index(o.digits, d);
    not_finite += o.not_finite;
  }
};

// Squares are exact in double. Those of a block are cut at common places, so that what is above each place adds up
// exactly: three cuts of 40 bits leave little.
void add_block(const float* x, int64_t n, Exact* to) {
  double rest[kBlock], top = 0;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const double v = static_cast<double>(x[i]);
    rest[i] = v * v;
    finite = finite && rest[i] <= std::numeric_limits<double>::max();
    top = std::max(top, rest[i]);
  }
  if (!finite) {
    for (int64_t i = 0; i < n; ++i)
      if (!(rest[i] <= std::numeric_limits<double>::max())) to->not_finite += rest[i];
    return;
  }
  if (top == 0) return;
  int exponent = std::ilogb(top) + 1;
  bool left = true;
  for (int cut = 0; cut < 3 && left; ++cut, exponent -= 40) {
    // Adding and subtracting 1.5 * 2^52 units rounds to units of 2^(exponent - 40).
    const double round = std::ldexp(1.5, exponent + 12);
    double sum = 0, most = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double above = (rest[i] + round) - round;
      rest[i] -= above;
      sum += above;
      most = std::max(most, std::abs(rest[i]));
    }
    to->add(sum);
    left = most != 0;
  }
  for (int64_t i = 0; i < n && left; ++i) to->add(rest[i]);
}

}  // namespace

void exact_squares(const Array& a, std::span<double> sum) {
  HOLON_CHECK(a.dtype == DType::kFloat32 && a.device.is_host() && sum.size() == kExactNumbers, "exact squares of {}",
              name(a.dtype));
  const Array dense = a.is_dense() ? a : contiguous(a);
  const float* data = dense.data<float>();
  Exact total;
  std::mutex adding;
  parallel_for(dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    Exact part;
    for (int64_t i = begin; i < end; i += kBlock) add_block(data + i, std::min(kBlock, end - i), &part);
    part.carry();
    const std::lock_guard lock(adding);
    total.add(part);
  });
  total.carry();
  for (int d = 0; d < kDigits; ++d) sum[to_size(d)] = static_cast<double>(at_index(total.digits, d));
  sum[kDigits] = total.not_finite;
}

double exact_value(std::span<const double> sum) {
  HOLON_CHECK(sum.size() == kExactNumbers, "an exact sum of {} numbers", sum.size());
  if (sum[kDigits] != 0) return sum[kDigits];
  Exact total;
  for (int d = 0; d < kDigits; ++d) at_index(total.digits, d) = static_cast<int64_t>(sum[to_size(d)]);
  total.carry();
  double value = 0;
  for (int d = kDigits; d-- > 0;) value += std::ldexp(static_cast<double>(at_index(total.digits, d)), kLowest + 32 * d);
  return value;
}

}  // namespace holon::kernels
