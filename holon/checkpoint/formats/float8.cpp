#include "holon/checkpoint/formats/float8.h"

#include <cmath>
#include <limits>

#include "holon/base/error.h"

namespace holon::checkpoint {

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A sign, then so many bits of exponent and mantissa; the bias is half of the exponents.
float number(int bits, int exponent_bits, int mantissa_bits) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1), exponent = (bits & 0x7f) >> mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const float size = exponent == 0
      ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
      : std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  return bits & 0x80 ? -size : size;
}

float e4m3(int bits) { return (bits & 0x7f) == 0x7f ? kNaN : number(bits, 4, 3); }

float e5m2(int bits) {
  if ((bits & 0x7f) > 0x7c) return kNaN;
  if ((bits & 0x7f) == 0x7c) return bits & 0x80 ? -INFINITY : INFINITY;
  return number(bits, 5, 2);
}

float e8m0(int bits) { return bits == 255 ? kNaN : std::ldexp(1.0f, bits - 127); }

std::array<float, 256> table(float (*of)(int)) {
  std::array<float, 256> values;
  for (int b = 0; b < 256; ++b) values[static_cast<size_t>(b)] = of(b);
  return values;
}

}  // namespace

const std::array<float, 256>& float8_values(Float8 kind) {
  static const std::array<float, 256> tables[] = {table(e4m3), table(e5m2), table(e8m0)};
  HOLON_CHECK(kind != Float8::kNone, "the dtype is not of 8 bits");
  return tables[static_cast<int>(kind) - 1];
}

std::optional<Float8> float8_of_format(std::string_view name) {
  if (name == "F8_E4M3") return Float8::kE4M3;
  if (name == "F8_E5M2") return Float8::kE5M2;
  if (name == "F8_E8M0") return Float8::kE8M0;
  return std::nullopt;
}

}  // namespace holon::checkpoint
