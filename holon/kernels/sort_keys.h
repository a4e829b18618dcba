// Elements as unsigned integers in the order of sorting: a NaN is above all, and 0 and -0 are equal.
#pragma once

#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA::f {

HOLON_FN uint32_t sort_key(int32_t x) { return static_cast<uint32_t>(x) ^ 0x80000000u; }
HOLON_FN uint64_t sort_key(int64_t x) { return static_cast<uint64_t>(x) ^ 0x8000000000000000u; }
HOLON_FN uint32_t sort_key(float x) {
  if (x != x) return ~0u;
  const auto b = __builtin_bit_cast(uint32_t, x + 0.f);
  return b >> 31 ? ~b : b ^ 0x80000000u;
}
HOLON_FN uint64_t sort_key(double x) {
  if (x != x) return ~uint64_t{0};
  const auto b = __builtin_bit_cast(uint64_t, x + 0.0);
  return b >> 63 ? ~b : b ^ 0x8000000000000000u;
}

}  // namespace holon::kernels::HOLON_ISA::f
