// Products of a few rows with quantised weights, and dequantising; three builds of one body (quantized_loops_body.h).
#pragma once

#include <cstdint>

#include "holon/kernels/quantized_format.h"

namespace holon::kernels {

// w[outputs, groups, bytes], blocks as in holon/kernels/quantized.h.
struct QuantizedWeight {
  const uint8_t* blocks;
  int64_t groups, size;  // size: numbers of a group
  QuantizedFormat format;
};

struct QuantizedLoops {
  // y[r * y_stride + j] = the product of row r of x, rows x_stride apart, with output j of w, for j in [begin, end).
  void (*rows)(const QuantizedWeight& w, const float* x, int64_t x_stride, int64_t rows, int64_t begin, int64_t end,
               float* y, int64_t y_stride);
  // to = the numbers of n blocks from `from` on; as bfloat16, rounded to nearest even.
  void (*numbers)(const uint8_t* from, int64_t n, int64_t size, QuantizedFormat format, float* to);
  void (*bf16_numbers)(const uint8_t* from, int64_t n, int64_t size, QuantizedFormat format, uint16_t* to);
};

const QuantizedLoops& quantized_loops();

namespace base {
QuantizedLoops quantized_loops();
}
namespace avx2 {
QuantizedLoops quantized_loops();
}
namespace avx512 {
QuantizedLoops quantized_loops();
}

}  // namespace holon::kernels
