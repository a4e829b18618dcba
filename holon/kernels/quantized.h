// Weights in groups of small integers with a scale each, and products with them.
//
// A group of n numbers is a block of bytes: the integers, then the scale as bfloat16 (low byte first); a number is its
// integer times the scale. Of 8 bits each integer is a byte, from -127 to 127. Of 4 bits, from -7 to 7, integer i and
// integer i + n/2 share byte i, as what they are above -8: the first in its lower half.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// The bytes of a group's block. Pre: bits is 4 or 8; size is even where bits is 4.
constexpr int64_t quantized_block_bytes(int64_t size, int64_t bits) { return size * bits / 8 + 2; }

// out[..., bytes] (uint8, contiguous) = the blocks of groups x[..., size]. The scale is the largest number over 7 or
// 127, so that no number is off by more than half of it. Errors (ValueError): numbers that are not finite.
void quantize(const Array& x, int64_t bits, Array& out);

// out[..., size] = the numbers of blocks x[..., bytes].
void dequantize(const Array& x, int64_t bits, Array& out);

// out[..., n] = x[..., groups, size] times w[n, groups, bytes]^T, summed over groups and their numbers, + bias[n],
// which may be nullptr. A few rows, as of generated tokens, are multiplied by what is dequantised in registers; for
// many, blocks of w are dequantised once. bfloat16 and float16 are summed in float32.
void quantized_linear(const Array& x, const Array& w, const Array* bias, int64_t bits, Array& out);

// out[..., groups, size] = dy[..., n] times w[n, groups, bytes], summed over n: the gradient of quantized_linear's x.
// A part of w is dequantised at a time.
void quantized_linear_input(const Array& dy, const Array& w, int64_t bits, Array& out);

}  // namespace holon::kernels
