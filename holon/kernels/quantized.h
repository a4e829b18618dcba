// Weights in groups of small numbers with a scale each, and products with them.
//
// A group of n numbers is a block of bytes: the numbers, then the scale. Integers have a scale of bfloat16 (low byte
// first), by which they are multiplied. Of 8 bits each integer is a byte, from -127 to 127. Of 4 bits, from -7 to 7,
// number i and number i + n/2 share byte i, as what they are above -8: the first in its lower half. MXFP4 (OCP
// Microscaling Formats 1.0) has the floats of 4 bits called E2M1, 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, in
// the same places, and a byte for the exponent of the scale (E8M0), for 32 numbers each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "holon/array/array.h"

namespace holon::kernels {

enum class QuantizedFormat : uint8_t { kInt8, kInt4, kMxfp4 };

constexpr int64_t kMxGroup = 32;    // numbers with one scale in microscaling formats
constexpr int kFloat4Exponent = 2;  // of E2M1's largest number

// "int8", "int4", "mxfp4". Errors (ValueError): another name.
QuantizedFormat quantized_format(std::string_view name);
const char* name(QuantizedFormat format);

constexpr int64_t quantized_bits(QuantizedFormat f) { return f == QuantizedFormat::kInt8 ? 8 : 4; }
// The bytes of a group's scale, and of its block. Pre: size is even where numbers have 4 bits.
constexpr int64_t quantized_scale_bytes(QuantizedFormat f) { return f == QuantizedFormat::kMxfp4 ? 1 : 2; }
constexpr int64_t quantized_block_bytes(int64_t size, QuantizedFormat f) {
  return size * quantized_bits(f) / 8 + quantized_scale_bytes(f);
}
// That of groups of such a size and blocks of so many bytes. Errors (ValueError): there is none.
QuantizedFormat format_of_blocks(int64_t size, int64_t bytes);
// Whether groups may have the size.
constexpr bool fits_format(int64_t size, QuantizedFormat f) {
  return size >= 2 && (f == QuantizedFormat::kMxfp4 ? size == kMxGroup : f == QuantizedFormat::kInt8 || size % 2 == 0);
}

// out[..., bytes] (uint8, contiguous) = the blocks of groups x[..., size]. The scale of integers is the largest number
// over 7 or 127, so that no number is off by more than half of it; that of MXFP4 is the largest number's exponent less
// 2, and what is above 6 becomes 6. Errors (ValueError): numbers that are not finite.
void quantize(const Array& x, QuantizedFormat format, Array& out);

// out[..., size] = the numbers of blocks x[..., bytes].
void dequantize(const Array& x, QuantizedFormat format, Array& out);

// out[..., n] = x[..., groups, size] times w[n, groups, bytes]^T, summed over groups and their numbers, + bias[n],
// which may be nullptr. A few rows, as of generated tokens, are multiplied by what is dequantised in registers; for
// many, blocks of w are dequantised once. bfloat16 and float16 are summed in float32.
void quantized_linear(const Array& x, const Array& w, const Array* bias, QuantizedFormat format, Array& out);

// The exponent of the scale of a group of the microscaling formats (section 6.3): that of its largest magnitude, less
// that of the format's largest number.
inline int mx_exponent(float largest, int of_format) {
  return largest == 0 ? -127 : std::clamp(std::ilogb(largest) - of_format, -127, 127);
}

// E2M1: the code of 4 bits nearest to x, ties to even, the largest beyond it; NaN is 0. And the number of a code.
constexpr uint8_t to_float4(float x) {
  const float v = x < 0 ? -x : x;
  const int code = (v > 0.25f) + (v >= 0.75f) + (v > 1.25f) + (v >= 1.75f) + (v > 2.5f) + (v >= 3.5f) + (v > 5);
  return static_cast<uint8_t>(code | (x < 0 || (x == 0 && __builtin_signbit(x)) ? 8 : 0));
}
constexpr float from_float4(int code) {
  constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return code & 8 ? -kNumbers[code & 7] : kNumbers[code & 7];
}

}  // namespace holon::kernels
