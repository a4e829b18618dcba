// Element-wise loops of one input. Compiled for each instruction set.
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/elementwise_functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

using ops::kFloats, ops::kInts;

template <class Op, class T>
void unary_row(const void* const* in, void* out, int64_t n, const Number* p) {
  const T* x = static_cast<const T*>(in[0]);
  auto* y = static_cast<typename Op::template Out<T>*>(out);
  const T p0 = p[0].to<T>(), p1 = p[1].to<T>(), p2 = p[2].to<T>();
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = Op::template apply<T>(x[i], p0, p1, p2);
}

// The vector loop is right up to a limit; a block with a larger number (or a NaN) goes through the C library.
template <class Op, float (*exact)(float)>
void trigonometric_row(const void* const* in, void* out, int64_t n, const Number* p) {
  const float* x = static_cast<const float*>(in[0]);
  float* y = static_cast<float*>(out);
  constexpr int64_t kBlock = 256;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = n - at < kBlock ? n - at : kBlock;
    int beyond = 0;
#pragma omp simd reduction(+ : beyond)
    for (int64_t i = 0; i < m; ++i) beyond += f::abs(x[at + i]) <= f::kTrigLimit ? 0 : 1;
    if (beyond != 0) {
      for (int64_t i = 0; i < m; ++i) y[at + i] = exact(x[at + i]);
      continue;
    }
    const void* from = x + at;
    unary_row<Op, float>(&from, y + at, m, p);
  }
}
template <class T, bool by_tanh>
void gelu_row(const void* in, void* out, void* slopes, int64_t n) {
  const T* x = static_cast<const T*>(in);
  T *y = static_cast<T*>(out), *slope = static_cast<T*>(slopes);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    T s;
    const T v = by_tanh ? f::gelu_tanh_and_slope(x[i], &s) : f::gelu_and_slope(x[i], &s);
    y[i] = v;
    slope[i] = s;
  }
}

float exact_sin(float x) { return __builtin_sinf(x); }
float exact_cos(float x) { return __builtin_cosf(x); }

template <class Op>
void fill(RowFn* row) {
  if constexpr ((Op::types & kFloats) != 0) {
    row[0] = unary_row<Op, float>;
    row[1] = unary_row<Op, double>;
  }
  if constexpr ((Op::types & kInts) != 0) {
    row[2] = unary_row<Op, int32_t>;
    row[3] = unary_row<Op, int64_t>;
  }
}

}  // namespace

void fill_unary(Table& t) {
#define HOLON_FILL(name, kinds, result, value) fill<ops::name>(t.unary[static_cast<int>(UnaryOp::name)]);
  HOLON_UNARY_OPS(HOLON_FILL)
#undef HOLON_FILL
  t.gelu_and_slope[0][0] = gelu_row<float, false>, t.gelu_and_slope[0][1] = gelu_row<double, false>;
  t.gelu_and_slope[1][0] = gelu_row<float, true>, t.gelu_and_slope[1][1] = gelu_row<double, true>;
  t.unary[static_cast<int>(UnaryOp::Sin)][0] = trigonometric_row<ops::Sin, exact_sin>;
  t.unary[static_cast<int>(UnaryOp::Cos)][0] = trigonometric_row<ops::Cos, exact_cos>;
}

}  // namespace holon::kernels::HOLON_ISA
