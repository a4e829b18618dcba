// Products of matrices by a library: cuBLASLt on devices (vendor_cublas.cpp), loops in the emulator.
#pragma once

#include <cstdint>

#include "holon/array/dtype.h"

namespace holon::kernels::cuda {

enum class Act : uint8_t { kNone, kRelu, kGeluTanh };
// What is added up over k besides: nothing, the rows of a, [m], or the columns of b, [n]. The gradient of a bias is
// that where the product is the gradient of its weight.
enum class Summed : uint8_t { kNone, kA, kB };

// A matrix of a batch, in elements. As it is: element (i, j) at i * ld + j; transposed: at j * ld + i.
struct Operand {
  int64_t ld = 0;
  int64_t batch_stride = 0;  // from matrix to matrix; 0: the same one for all
  bool transposed = false;
};

// d = act(alpha * a @ b + beta * c + bias) for each of a batch, where c and d have the same strides, are not
// transposed, and may be one.
struct Product {
  DType dtype = DType::kFloat32;           // of a and b: a floating one
  DType result = DType::kFloat32;          // of c, d and bias: the same or, for the two-byte ones, float32
  int64_t m = 0, n = 0, k = 0, batch = 1;  // all at least 1
  Operand a, b, d;
  double alpha = 1, beta = 0;  // beta == 0: c is not read
  Act act = Act::kNone;
  Summed summed = Summed::kNone;  // else there is neither bias nor act, alpha and batch are 1
  bool tf32 = false;
};

// Puts the product on the current stream (stream.h). bias[n] may be nullptr. sums: of dtype `result`, written where
// p.summed asks for them. False, with nothing done: the library has no way to do it.
bool product(const Product& p, const void* a, const void* b, const void* c, void* d, const void* bias,
             void* sums = nullptr);

// d[m, n] = a[m, k] b[n, k]^T times two numbers, all row by row: a and b of float8 dtypes, d float32, bfloat16 or
// float16.
struct ScaledProduct {
  DType a = float8_e4m3fn, b = float8_e4m3fn, result = DType::kFloat32;
  int64_t m = 0, n = 0, k = 0;  // all at least 1
};

// Why the current device or its library has no such product, nullptr where it may have it.
const char* refusal_of(const ScaledProduct& p);

// Puts the product on the current stream. The numbers are where the device can read them. Returns nullptr, or, with
// nothing done, why the library has no way to do it. Pre: refusal_of(p) is nullptr.
const char* scaled_product(const ScaledProduct& p, const void* a, const void* b, const float* scale_a,
                           const float* scale_b, void* d);

}  // namespace holon::kernels::cuda
