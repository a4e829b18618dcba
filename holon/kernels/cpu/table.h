// The vector loops: compiled once for each instruction set, and picked at run time through one table of functions.
//
// A loop works on contiguous rows of one of four types; everything else (strides, broadcasting, other dtypes, threads) is
// up to its callers. This header is all that the files compiled for an instruction set share with the rest, so that no
// inline function made for one set is called on a machine without it.
#pragma once

#include <cstdint>

#include "holon/kernels/elementwise_ops.h"

namespace holon::kernels {

// The types that loops compute in.
enum class Compute : uint8_t { kF32, kF64, kI32, kI64 };
inline constexpr int kComputeCount = 4;

// Which inputs of a binary loop are rows and which are one element.
enum class Form : uint8_t { kVectorVector, kVectorScalar, kScalarVector };
inline constexpr int kFormCount = 3;

// A number given as an argument: exact as an integer if it was one.
struct Number {
  double d = 0;
  int64_t i = 0;

  template <class T>
  [[gnu::always_inline]] constexpr T to() const {
    return static_cast<T>(0.5) != 0 ? static_cast<T>(d) : static_cast<T>(i);
  }
};

// out[i] = op(in[0][i], in[1][i], ...) for i < n. An input may be out itself.
using RowFn = void (*)(const void* const* in, void* out, int64_t n, const Number* params);
// dst[i] = src[i] for i < n with another type.
using ConvertFn = void (*)(const void* src, void* dst, int64_t n);

enum class ReduceOp : uint8_t { Sum, Prod, Max, Min, SumSquares, AbsMax, SumAbs, kCount, Mean, Any, All };

// What a reduction is accumulated in: d for kF32 and kF64, i for kI32 and kI64.
union Accumulator {
  double d;
  int64_t i;
};
// acc = op(acc, x[0], ..., x[n - 1])
using ReduceRowFn = void (*)(const void* x, int64_t n, Accumulator* acc);
// acc[j] = op(acc[j], x[0][j], ..., x[rows - 1][j]) for j < cols; row_stride in elements.
using ReduceColumnsFn = void (*)(const void* x, int64_t row_stride, int64_t rows, int64_t cols, Accumulator* acc);
// The index of the first element that is the largest (smallest), a NaN being beyond all; n >= 1.
using ArgReduceFn = int64_t (*)(const void* x, int64_t n);

struct Table {
  const char* name;
  RowFn unary[static_cast<int>(UnaryOp::kCount)][kComputeCount];
  // The forms with a scalar are there for kF32 only.
  RowFn binary[static_cast<int>(BinaryOp::kCount)][kComputeCount][kFormCount];
  RowFn ternary[static_cast<int>(TernaryOp::kCount)][kComputeCount];
  RowFn select[4];  // out = in[0] (bytes, 0 or not) ? in[1] : in[2], by log2 of the element's size
  ConvertFn convert[9][9];  // [from][to] by DType; null on the diagonal
  ReduceRowFn reduce_row[static_cast<int>(ReduceOp::kCount)][kComputeCount];
  ReduceColumnsFn reduce_columns[static_cast<int>(ReduceOp::kCount)][kComputeCount];
  ArgReduceFn argmax[kComputeCount], argmin[kComputeCount];
};

// The table of the best instruction set that this machine has, or of the one that HOLON_ISA names.
const Table& table();
// The sets that this machine has: "base", "v3" (AVX2), "v4" (AVX-512).
int isa_count();
const char* isa_name(int i);
// Makes table() that of the named set. For tests and benchmarks. Errors: a set that this machine lacks (ValueError).
void select_isa(const char* name);

// Thrown by integer loops that meet a divisor of 0.
[[noreturn]] void fail_division_by_zero();

}  // namespace holon::kernels
