// The formats of quantised weights (quantized.h), for kernels too: these functions are in none of their objects, which
// are compiled for several instruction sets.
#pragma once

#include <cstdint>

#define HOLON_IN_PLACE [[gnu::always_inline]] constexpr

namespace holon::kernels {

enum class QuantizedFormat : uint8_t { kInt8, kInt4, kMxfp4 };

constexpr int64_t kMxGroup = 32;    // numbers with one scale in microscaling formats
constexpr int kFloat4Exponent = 2;  // of E2M1's largest number

HOLON_IN_PLACE int64_t quantized_bits(QuantizedFormat f) { return f == QuantizedFormat::kInt8 ? 8 : 4; }
// The bytes of a group's scale, and of its block. Pre: size is even where numbers have 4 bits.
HOLON_IN_PLACE int64_t quantized_scale_bytes(QuantizedFormat f) { return f == QuantizedFormat::kMxfp4 ? 1 : 2; }
HOLON_IN_PLACE int64_t quantized_block_bytes(int64_t size, QuantizedFormat f) {
  return size * quantized_bits(f) / 8 + quantized_scale_bytes(f);
}
// The numbers of a group in a block of so many bytes.
HOLON_IN_PLACE int64_t quantized_group_size(int64_t bytes, QuantizedFormat f) {
  return (bytes - quantized_scale_bytes(f)) * 8 / quantized_bits(f);
}
// Whether groups may have the size.
HOLON_IN_PLACE bool fits_format(int64_t size, QuantizedFormat f) {
  return size >= 2 && (f == QuantizedFormat::kMxfp4 ? size == kMxGroup : f == QuantizedFormat::kInt8 || size % 2 == 0);
}

// E2M1: the code of 4 bits nearest to x, ties to even, the largest beyond it; NaN is 0. And the number of a code.
HOLON_IN_PLACE uint8_t to_float4(float x) {
  const float v = x < 0 ? -x : x;
  const int code = (v > 0.25f) + (v >= 0.75f) + (v > 1.25f) + (v >= 1.75f) + (v > 2.5f) + (v >= 3.5f) + (v > 5);
  return static_cast<uint8_t>(code | (x < 0 || (x == 0 && __builtin_signbit(x)) ? 8 : 0));
}
HOLON_IN_PLACE float from_float4(int code) {
  constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kNumbers[code & 7] : kNumbers[code & 7];
}

}  // namespace holon::kernels

#undef HOLON_IN_PLACE
