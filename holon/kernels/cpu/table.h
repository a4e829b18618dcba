// The vector loops: compiled once for each instruction set, and picked at run time through one table of functions.
//
// A loop works on contiguous rows of one of four types; everything else (strides, broadcasting, other dtypes, threads)
// is up to its callers. This header is all that the files compiled for an instruction set share with the rest, so that
// no inline function made for one set is called on a machine without it.
#pragma once

#include <cstdint>

#include "holon/kernels/elementwise_ops.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels {

// Which inputs of a binary loop are rows and which are one element.
enum class Variant : uint8_t { kVectorVector, kVectorScalar, kScalarVector };
inline constexpr int kVariantCount = 3;

// out[i] = op(in[0][i], in[1][i], ...) for i < n. An input may be out itself.
using RowFn = void (*)(const void* const* in, void* out, int64_t n, const Number* params);
// dst[i] = src[i] for i < n with another type.
using ConvertFn = void (*)(const void* src, void* dst, int64_t n);

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
using SoftmaxColumnsFn = void (*)(const void* x, int64_t x_stride, void* y, int64_t y_stride, int64_t rows,
                                  int64_t cols);
using SoftmaxBackwardColumnsFn = void (*)(const void* dy, int64_t dy_stride, const void* y, int64_t y_stride, void* dx,
                                          int64_t dx_stride, int64_t rows, int64_t cols);
inline constexpr int64_t kSoftmaxCols = 256;
// log(sum(exp(x))) as most + log(sum): the logarithms of many rows are taken together.
using SumExpFn = void (*)(const void* x, int64_t n, double* most, double* sum);
// dx = g (exp(x - lse) - even)
using CrossEntropyBackwardFn = void (*)(const void* x, void* dx, int64_t n, double lse, double g, double even);
// y = (x - mean) rstd w + b, with w and b null or of n elements. root: the mean is taken as 0.
using NormFn = void (*)(const void* x, const void* w, const void* b, double eps, void* y, int64_t n, double* mean,
                        double* rstd);
// dx (plus `plus`, unless that is null), and dw += dy xhat, db += dy where they are not null. dx may be dy or plus.
using NormBackwardFn = void (*)(const void* dy, const void* x, const void* w, double mean, double rstd,
                                const void* plus, void* dx, void* dw, void* db, int64_t n);

// Channels of batch and group normalisation: along rows (a channel's elements are adjacent) and columns (the channels
// are).
struct ChannelLoops {
  // sum += x, squares += x x
  void (*row_moments)(const void* x, int64_t n, double* sum, double* squares);
  void (*column_moments)(const void* x, int64_t stride, int64_t rows, int64_t cols, double* sum, double* squares);
  // sum += dy, products += dy (x - mean)
  void (*row_products)(const void* dy, const void* x, int64_t n, double mean, double* sum, double* products);
  void (*column_products)(const void* dy, const void* x, int64_t stride, int64_t rows, int64_t cols, const double* mean,
                          double* sum, double* products);
  // y = (x - mean) factor + shift; the columns' numbers are T.
  void (*row_scale)(const void* x, void* y, int64_t n, double mean, double factor, double shift);
  void (*column_scale)(const void* x, void* y, int64_t stride, int64_t rows, int64_t cols, const void* mean,
                       const void* factor, const void* shift);
  // dx = dy factor - shift - (x - mean) slope
  void (*row_scale_backward)(const void* dy, const void* x, void* dx, int64_t n, double mean, double factor,
                             double shift, double slope);
  void (*column_scale_backward)(const void* dy, const void* x, void* dx, int64_t stride, int64_t rows, int64_t cols,
                                const void* mean, const void* factor, const void* shift, const void* slope);
};

// Groups of random bits, of 64 elements of 32 bits or of 32 elements of 64 bits: group g holds the elements g * 64
// (g * 32) and on of a tensor.
using RandomBitsFn = void (*)(uint64_t seed, uint64_t counter, uint64_t first_group, int64_t groups, void* out);
using RandomRowFn = void (*)(const void* bits, const void* x, void* out, int64_t n, const RandomNumbers& p);

// Optimizer steps, one pass over memory; T is float or double.
//
// p: the parameter, its gradient and up to three states, null where a rule has none.
using UpdateFn = void (*)(void* const* p, int64_t n, const UpdateNumbers& c);
// Adds to sums: the squares of the parameter, and of the gradient (Lamb: of the direction, whose averages are updated).
using UpdateNormsFn = void (*)(void* const* p, int64_t n, const UpdateNumbers& c, double* sums);

// By NormKind.
using NormFnOf = double (*)(const void* x, int64_t n, double p);
// x = x * factor, then not below low and not above high; returns whether all of it was finite before.
using ScaleFn = bool (*)(void* x, int64_t n, double factor, double low, double high);

// y = gelu(x) and its slope there; y may be x.
using GeluFn = void (*)(const void* x, void* y, void* slope, int64_t n);

struct Table {
  const char* name;
  RowFn unary[static_cast<int>(UnaryOp::kCount)][kComputeCount];
  // The variants with a scalar are there for kF32 only.
  RowFn binary[static_cast<int>(BinaryOp::kCount)][kComputeCount][kVariantCount];
  RowFn ternary[static_cast<int>(TernaryOp::kCount)][kComputeCount];
  GeluFn gelu_and_slope[2][2];  // [by erf, by tanh][kF32, kF64]
  RowFn select[4];              // out = in[0] (bytes, 0 or not) ? in[1] : in[2], by log2 of the element's size
  ConvertFn convert[12][12];    // [from][to] by DType
  ReduceRowFn reduce_row[static_cast<int>(ReduceOp::kCount)][kComputeCount];
  ReduceColumnsFn reduce_columns[static_cast<int>(ReduceOp::kCount)][kComputeCount];
  ArgReduceFn argmax[kComputeCount], argmin[kComputeCount];
  bool (*all_within)(const int64_t* indices, int64_t n, int64_t size);  // whether all are in [0, size)
  SoftmaxFn softmax[2], log_softmax[2];
  SoftmaxBackwardFn softmax_backward[2], log_softmax_backward[2];
  SoftmaxColumnsFn softmax_columns[2], log_softmax_columns[2];
  SoftmaxBackwardColumnsFn softmax_backward_columns[2], log_softmax_backward_columns[2];
  SumExpFn sum_exp[2];
  CrossEntropyBackwardFn cross_entropy_backward[2];
  NormFn layer_norm[2], rms_norm[2];
  NormBackwardFn layer_norm_backward[2], rms_norm_backward[2];
  ChannelLoops channels[2];
  UpdateFn update[static_cast<int>(UpdateRule::kCount)][2];
  UpdateNormsFn sgd_norms[2], lamb_norms[2];
  NormFnOf norm_of[6][2];
  ScaleFn scale[2], clamp[2];
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
