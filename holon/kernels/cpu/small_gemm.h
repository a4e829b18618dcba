// Own products for one thread: float64, and float32 where they are faster than oneDNN's, or finish blocks of the
// result. Three builds of one body (small_gemm_body.h), the best of which is chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace holon::kernels {

// c[m, n] = alpha * a @ b + beta * c + bias[n]. Strides in elements; c's columns are adjacent.
// Pre: a_row_stride == 1 or a_col_stride == 1; k >= 1; pack() returns kPackBytes aligned to 64 bytes.
template <class T>
struct GemmArgs {
  int64_t m, n, k;
  T alpha;
  const T* a;
  int64_t a_row_stride, a_col_stride;
  const T* b;
  int64_t b_row_stride, b_col_stride;
  T beta;  // 0: c is not read
  T* c;
  int64_t c_row_stride;
  const T* bias;  // nullptr: none
  void* (*pack)();
  // What is done with blocks of c once they are there, while they are in the cache: rows [i, i + m) and columns [j, j +
  // n), counted from row0 and col0. nullptr: nothing.
  void (*done)(void* state, int64_t i, int64_t m, int64_t j, int64_t n) = nullptr;
  void* state = nullptr;
  int64_t row0 = 0, col0 = 0;
  T* row_sums = nullptr;  // the sums of the rows of a are written there
};

inline constexpr size_t kPackBytes = (1 << 20) + (384 << 10);

struct SmallGemm {
  // c = a @ b with contiguous rows and n <= vector_bytes / 4; arguments in registers, as it takes no longer than a copy
  // of GemmArgs would.
  void (*tiny_f32)(const float* a, int64_t a_row_stride, const float* b, int64_t b_row_stride, float* c,
                   int64_t c_row_stride, int64_t m, int64_t n, int64_t k);
  void (*f32)(const GemmArgs<float>&);
  void (*f64)(const GemmArgs<double>&);
  void (*half_to_float)(const uint16_t*, float*, int64_t);
  void (*float_to_half)(const float*, uint16_t*, int64_t);
  int vector_bytes;
};

// The build for this machine.
const SmallGemm& small_gemm();

namespace base {
SmallGemm small_gemm();
}
namespace avx2 {
SmallGemm small_gemm();
}
namespace avx512 {
SmallGemm small_gemm();
}

}  // namespace holon::kernels
