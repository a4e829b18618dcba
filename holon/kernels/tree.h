// Products and sums of float32 arrays on the CPU in the order of sum_tree.h: what kernels call where
// Context::layout_free() is set. An element of a result depends on the terms of its sum and their number only: not on
// the other elements, on strides or on threads.
#pragma once

#include <span>

#include "holon/array/array.h"
#include "holon/base/context.h"
#include "holon/kernels/conv.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/numbers.h"

namespace holon::kernels {

// Whether a kernel that writes out adds up in a tree.
inline bool adds_in_tree(const Array& out) {
  return Context::current().layout_free() && out.dtype == DType::kFloat32 && out.device.is_host();
}

namespace tree {

// As the functions of gemm.h; the terms are in the order of the contracted axes.
void matmul(const Array& a, const Array& b, Array& out, double alpha = 1, double beta = 0);
void linear(const Array& x, const Array& w, const Array* bias, Array& out);
void linear_weight_grad(const Array& dy, const Array& x, Array& dw, Array* dbias, double beta);
// As gemm(), with the terms of an element one after the other: terms of 0 behind the others change nothing. For sums
// of which each rank has all terms. Does not read the context.
void gemm_one_leaf(int64_t m, int64_t n, int64_t k, float alpha, MatrixView a, MatrixView b, float beta, float* c,
                   int64_t c_row_stride, const float* bias = nullptr);

// out = the sum of a, of its squares or of its magnitudes (ReduceOp::Sum, SumSquares, SumAbs) over the axes whose bit
// is set in axes, in row-major order of these, as a tree whose leaves are as small as halving makes them; or their
// product (Prod), one factor after the other in float64. out has the other axes in their order; the reduced ones may be
// left out or have size 1.
void reduce(ReduceOp op, const Array& a, uint32_t axes, Array& out);
inline void sum(const Array& a, uint32_t axes, Array& out) { tree::reduce(ReduceOp::Sum, a, axes, out); }

// As the functions of conv.h. Pre: no array is empty.
void conv2d(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out);
void conv2d_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx);
void conv2d_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw);

// out[r] = (adds: out[r] +) the sum of the rows [d] of x with to[i] == r, where the sum is over all rows and the others
// are zeros. Row i begins at from[i] bytes. Rows whose `to` is not one of out's are left out.
void add_rows(const Array& x, std::span<const int64_t> from, std::span<const int64_t> to, Array& out, bool adds);

}  // namespace tree

}  // namespace holon::kernels
