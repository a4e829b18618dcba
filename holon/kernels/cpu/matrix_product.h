// One product of two matrices of any strides, by the kernel that is fastest for it: what gemm.cpp's batches are made
// of.
#pragma once

#include "holon/kernels/gemm.h"

namespace holon::kernels {

// Products at least this large (m * n * k) are worth several threads.
inline constexpr double kParallelWork = 1 << 18;

template <class T>
struct StridedMatrix {
  T* data;
  int64_t rs, cs;
};

// c = alpha * a @ b + beta * c + bias, then the finish.
template <class T>
struct MatrixProduct {
  int64_t m, n, k;
  T alpha, beta;
  StridedMatrix<const T> a, b;
  StridedMatrix<T> c;
  const T* bias;
  Finish finish = {};
  T* row_sums = nullptr;  // of a; only where c has contiguous rows
};

// T is a type of elements but the two-byte floating-point ones. Sizes may be 0. With a finish or row_sums: float32 or
// float64.
template <class T>
void run_product(const MatrixProduct<T>& g);

}  // namespace holon::kernels
