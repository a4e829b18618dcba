// Products of a row with weights of 4 bits by the dot products of bytes of AVX-512 VNNI, for rows of bfloat16: each
// group of 32 of their numbers is rounded to integers of 8 bits with a scale, which is about as exact as bfloat16 is.
#pragma once

#include <cstdint>

#include "holon/kernels/cpu/quantized_loops.h"

namespace holon::kernels {

// A row in pairs of groups of 32 integers; an odd last one has zeros behind it. For each pair, what the 16 lanes of a
// vector have, 8 for each group: the group's scale, times byte_codes(format).factor; and in the first of its lanes its
// integers' sum, times byte_codes(format).offset, less which its products begin with, in the others 0.
struct ByteRow {
  const int8_t* integers;
  const float* scales;
  const int32_t* starts;
};

// What the kernel has as unsigned bytes is `offset` above numbers that are to be multiplied by `factor`.
struct ByteCodes {
  int32_t offset;
  float factor;
};
constexpr ByteCodes byte_codes(QuantizedFormat f) {
  return f == QuantizedFormat::kMxfp4 ? ByteCodes{12, 0.5f} : ByteCodes{8, 1.0f};
}

// y[j] = the row times output j of w, for j in [begin, end). Pre: the machine has AVX-512 VNNI; groups of 32 numbers of
// 4 bits.
void byte_products(const QuantizedWeight& w, const ByteRow& x, int64_t begin, int64_t end, float* y);

}  // namespace holon::kernels
