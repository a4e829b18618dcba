// Matrix products on CPU arrays of any strides. float32 goes to oneDNN's sgemm or, where they are faster, to own
// kernels (small_gemm.h); float64 to own kernels; float16 and bfloat16 are computed in float32; integers wrap around;
// for bool a product is "and" and a sum is "or". All arrays of a call have one dtype; out overlaps no input.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// What is done with a float32 product block by block, while a block is in the cache: with rows [i, i + m) and columns
// [j, j + n) of out, seen as a matrix. Each element belongs to one block; blocks may be given to several threads at
// once.
struct Finish {
  void (*run)(void* state, int64_t i, int64_t m, int64_t j, int64_t n) = nullptr;
  void* state = nullptr;
};

// out[..., m, n] = alpha * a[..., m, k] @ b[..., k, n] + beta * out. Leading axes broadcast; out has the common ones.
// beta == 0: out is not read. k == 0 gives beta * out.
void matmul(const Array& a, const Array& b, Array& out, double alpha = 1, double beta = 0);

// The same with a finish. Pre: float32, b has two axes, out is contiguous.
void matmul(const Array& a, const Array& b, Array& out, double alpha, const Finish& finish);

// out[..., n] = x[..., k] @ w[n, k]^T + bias[n]; bias may be nullptr. With a finish: float32, out is contiguous.
void linear(const Array& x, const Array& w, const Array* bias, Array& out, const Finish& finish = {});

// dw[n, k] = beta * dw + dy[..., n]^T @ x[..., k] over all leading axes, and dbias[n] = beta * dbias + the sum of dy
// over them if dbias is not nullptr.
void linear_weight_grad(const Array& dy, const Array& x, Array& dw, Array* dbias = nullptr, double beta = 0);

// out[n] = beta * out + the sum of x[m, n] over m.
void column_sums(const Array& x, Array& out, double beta = 0);

// One float32 product with given strides in elements, for other kernels:
// c[m, n] = alpha * a @ b + beta * c + bias[n] (bias may be nullptr).
struct MatrixView {
  const float* data;
  int64_t row_stride, col_stride;
};
void gemm(int64_t m, int64_t n, int64_t k, float alpha, MatrixView a, MatrixView b, float beta, float* c,
          int64_t c_row_stride, const float* bias = nullptr);

}  // namespace holon::kernels
