#include "holon/array/dtype.h"

#include <ostream>
#include <utility>

#include "holon/base/error.h"

namespace holon {

int category(DType dtype) { return is_floating(dtype) ? 2 : dtype == DType::kBool ? 0 : 1; }

const char* name(DType dtype) {
  constexpr const char* kName[] = {"bool",     "uint8",   "int8",    "int32",         "int64",       "float16",
                                   "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"};
  return kName[static_cast<int>(dtype)];
}

std::ostream& operator<<(std::ostream& to, DType dtype) { return to << name(dtype); }

void detail::fail_not_floating(DType dtype) {
  fail_type("a floating point dtype is needed here; found {}. Convert the tensor first, e.g. x.to(float32).",
            name(dtype));
}

void detail::fail_not_computed(DType dtype) {
  fail_type("{} is for storage: nothing is computed with it. Convert the tensor first, e.g. x.to(float32).",
            name(dtype));
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (a > b) std::swap(a, b);
  if (is_float8(b)) detail::fail_not_computed(b);
  // The enum is ordered so that the larger one wins, except for two pairs whose ranges do not nest.
  if (a == uint8 && b == int8) return DType::kInt32;
  if (a == float16 && b == bfloat16) return float32;
  return b;
}

// IEEE half precision by bit arithmetic, round to nearest even.
Float16::Float16(float f) {
  uint32_t u = std::bit_cast<uint32_t>(f);
  uint16_t sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  if (u >= 0x47800000) {  // at least 65536: infinity or NaN
    bits = sign | (u > 0x7f800000 ? 0x7e00 : 0x7c00);
    return;
  }
  if (u < 0x38800000) {  // subnormal half: let the float unit round by adding 0.5
    float v = std::bit_cast<float>(u) + 0.5f;
    bits = sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(v) - 0x3f000000);
    return;
  }
  u += 0xc8000fff + ((u >> 13) & 1);
  bits = sign | static_cast<uint16_t>(u >> 13);
}

Float16::operator float() const {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t rest = bits & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x0400) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000));
  float v = static_cast<float>(rest) * 5.9604644775390625e-8f;  // 2^-24
  return sign ? -v : v;
}

}  // namespace holon
