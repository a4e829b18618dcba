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
#include "holon/kernels/quantized_format.h"

namespace holon::kernels {

// "int8", "int4", "mxfp4". Errors (ValueError): another name.
QuantizedFormat quantized_format(std::string_view name);
const char* name(QuantizedFormat format);

// That of groups of such a size and blocks of so many bytes. Errors (ValueError): there is none.
QuantizedFormat format_of_blocks(int64_t size, int64_t bytes);
// out[..., bytes] (uint8, contiguous) = the blocks of groups x[..., size]. The scale of integers is the largest number
// over 7 or 127, so that no number is off by more than half of it; that of MXFP4 is the largest number's exponent less
// 2, and what is above 6 becomes 6. Errors (ValueError): numbers that are not finite.
void quantize(const Array& x, QuantizedFormat format, Array& out);

// out[..., size] = the numbers of blocks x[..., bytes].
void dequantize(const Array& x, QuantizedFormat format, Array& out);

// out[..., n] = x[..., groups, size] times w[n, groups, bytes]^T, summed over groups and their numbers, + bias[n],
// which may be nullptr. A few rows, as of generated tokens, are multiplied by what is dequantised in registers; for
// many, blocks of w are dequantised once. bfloat16 and float16 are summed in float32. A few rows of bfloat16 times
// groups of 32 numbers of 4 bits are multiplied as integers where the machine has AVX-512 VNNI: each group of a row is
// rounded to 8 bits, off by at most a 254th of its largest number.
void quantized_linear(const Array& x, const Array& w, const Array* bias, QuantizedFormat format, Array& out);

// The exponent of the scale of a group of the microscaling formats (section 6.3): that of its largest magnitude, less
// that of the format's largest number.
inline int mx_exponent(float largest, int of_format) {
  return largest == 0 ? -127 : std::clamp(std::ilogb(largest) - of_format, -127, 127);
}

// out[..., groups, size] = dy[..., n] times w[n, groups, bytes], summed over n: the gradient of quantized_linear's x.
// A part of w is dequantised at a time.
void quantized_linear_input(const Array& dy, const Array& w, QuantizedFormat format, Array& out);

}  // namespace holon::kernels
