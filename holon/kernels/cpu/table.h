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
  double d;
  int64_t i;

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

// Rows of normalisations and losses, for kF32 and kF64; T is float or double.
//
// y = softmax(scale x[0 .. valid)), 0 from valid on; scale > 0. log: y = log softmax(x), scale and valid unused.
using SoftmaxFn = void (*)(const void* x, void* y, int64_t n, double scale, int64_t valid);
// dx = scale y (dy - sum(dy y)); log: dx = dy - exp(y) sum(dy).
using SoftmaxBackwardFn = void (*)(const void* dy, const void* y, void* dx, int64_t n, double scale);
// The same along columns: element (i, j) is at i * stride + j; cols <= kSoftmaxCols.
using SoftmaxColumnsFn = void (*)(const void* x, int64_t x_stride, void* y, int64_t y_stride, int64_t rows, int64_t cols);
using SoftmaxBackwardColumnsFn = void (*)(const void* dy, int64_t dy_stride, const void* y, int64_t y_stride, void* dx,
                                          int64_t dx_stride, int64_t rows, int64_t cols);
inline constexpr int64_t kSoftmaxCols = 256;
// log(sum(exp(x)))
using LogSumExpFn = double (*)(const void* x, int64_t n);
// dx = g (exp(x - lse) - even)
using CrossEntropyBackwardFn = void (*)(const void* x, void* dx, int64_t n, double lse, double g, double even);
// y = (x - mean) rstd w + b, with w and b null or of n elements. root: the mean is taken as 0.
using NormFn = void (*)(const void* x, const void* w, const void* b, double eps, void* y, int64_t n, double* mean, double* rstd);
// dx, and dw += dy xhat, db += dy where they are not null.
using NormBackwardFn = void (*)(const void* dy, const void* x, const void* w, double mean, double rstd, void* dx, void* dw,
                                void* db, int64_t n);

// Channels of batch and group normalisation: along rows (a channel's elements are adjacent) and columns (the channels are).
struct ChannelLoops {
  // sum += x, squares += x x
  void (*row_moments)(const void* x, int64_t n, double* sum, double* squares);
  void (*column_moments)(const void* x, int64_t stride, int64_t rows, int64_t cols, double* sum, double* squares);
  // sum += dy, products += dy (x - mean)
  void (*row_products)(const void* dy, const void* x, int64_t n, double mean, double* sum, double* products);
  void (*column_products)(const void* dy, const void* x, int64_t stride, int64_t rows, int64_t cols, const double* mean, double* sum,
                          double* products);
  // y = (x - mean) factor + shift; the columns' numbers are T.
  void (*row_scale)(const void* x, void* y, int64_t n, double mean, double factor, double shift);
  void (*column_scale)(const void* x, void* y, int64_t stride, int64_t rows, int64_t cols, const void* mean, const void* factor,
                       const void* shift);
  // dx = dy factor - shift - (x - mean) slope
  void (*row_scale_backward)(const void* dy, const void* x, void* dx, int64_t n, double mean, double factor, double shift, double slope);
  void (*column_scale_backward)(const void* dy, const void* x, void* dx, int64_t stride, int64_t rows, int64_t cols, const void* mean,
                                const void* factor, const void* shift, const void* slope);
};

// Groups of random bits, of 64 elements of 32 bits or of 32 elements of 64 bits: group g holds the elements g * 64
// (g * 32) and on of a tensor.
using RandomBitsFn = void (*)(uint64_t seed, uint64_t counter, uint64_t first_group, int64_t groups, void* out);
struct RandomNumbers {
  double a = 0, b = 0, c = 0, d = 0, low = 0, high = 0;
  uint64_t threshold = 0;
};
using RandomRowFn = void (*)(const void* bits, const void* x, void* out, int64_t n, const RandomNumbers& p);

// Optimizer steps, one pass over memory; T is float or double.
struct SgdNumbers {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize, first;  // first: the momentum is the gradient
};
using SgdFn = void (*)(void* p, const void* g, void* momentum, int64_t n, const SgdNumbers& c);  // momentum may be null
struct AdamNumbers {
  double step_size, beta1, beta2, eps, weight_decay, shrink, root_correction;
  bool maximize;
};
// p = p shrink - step_size m / (sqrt(v) root_correction + eps); largest may be null (no amsgrad).
using AdamFn = void (*)(void* p, const void* g, void* m, void* v, void* largest, int64_t n, const AdamNumbers& c);

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
  SoftmaxFn softmax[2], log_softmax[2];
  SoftmaxBackwardFn softmax_backward[2], log_softmax_backward[2];
  SoftmaxColumnsFn softmax_columns[2], log_softmax_columns[2];
  SoftmaxBackwardColumnsFn softmax_backward_columns[2], log_softmax_backward_columns[2];
  LogSumExpFn log_sum_exp[2];
  CrossEntropyBackwardFn cross_entropy_backward[2];
  NormFn layer_norm[2], rms_norm[2];
  NormBackwardFn layer_norm_backward[2], rms_norm_backward[2];
  ChannelLoops channels[2];
  SgdFn sgd[2];
  AdamFn adam[2];
  RandomBitsFn random_bits[2];
  RandomRowFn uniform[2], normal[2], truncated_normal[2], bernoulli, bernoulli_of, dropout[2];
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
