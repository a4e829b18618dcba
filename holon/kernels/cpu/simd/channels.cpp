// Statistics and normalisation of channels: along rows, where a channel's elements are adjacent, and along columns,
// where the channels are. Compiled for each instruction set. Sums are added up in double.
#include "holon/kernels/cpu/table.h"

namespace holon::kernels::HOLON_ISA {

namespace {

// Two halves at a time, so that an addition need not wait for the one before.
template <class T>
void row_moments(const void* px, int64_t n, double* sum, double* squares) {
  const T* x = static_cast<const T*>(px);
  const int64_t half = n / 2;
  const T* y = x + half;
  double s = 0, q = 0, s2 = 0, q2 = 0;
#pragma omp simd reduction(+ : s, q, s2, q2)
  for (int64_t i = 0; i < half; ++i) {
    const double v = static_cast<double>(x[i]), w = static_cast<double>(y[i]);
    s += v;
    q += v * v;
    s2 += w;
    q2 += w * w;
  }
  const double last = n % 2 ? static_cast<double>(x[n - 1]) : 0.0;
  *sum += s + s2 + last;
  *squares += q + q2 + last * last;
}

template <class T>
void column_moments(const void* px, int64_t stride, int64_t rows, int64_t cols, double* __restrict sum,
                    double* __restrict squares) {
  const T* x = static_cast<const T*>(px);
  for (int64_t i = 0; i < rows; ++i, x += stride)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) {
      const double v = static_cast<double>(x[j]);
      sum[j] += v;
      squares[j] += v * v;
    }
}

template <class T>
void row_products(const void* pdy, const void* px, int64_t n, double mean, double* sum, double* products) {
  const T *dy = static_cast<const T*>(pdy), *x = static_cast<const T*>(px);
  const int64_t half = n / 2;
  const T *dy2 = dy + half, *x2 = x + half;
  double s = 0, q = 0, s2 = 0, q2 = 0;
#pragma omp simd reduction(+ : s, q, s2, q2)
  for (int64_t i = 0; i < half; ++i) {
    const double g = static_cast<double>(dy[i]), h = static_cast<double>(dy2[i]);
    s += g;
    q += g * (static_cast<double>(x[i]) - mean);
    s2 += h;
    q2 += h * (static_cast<double>(x2[i]) - mean);
  }
  const double last = n % 2 ? static_cast<double>(dy[n - 1]) : 0.0;
  *sum += s + s2 + last;
  *products += q + q2 + (n % 2 ? last * (static_cast<double>(x[n - 1]) - mean) : 0.0);
}

template <class T>
void column_products(const void* pdy, const void* px, int64_t stride, int64_t rows, int64_t cols, const double* mean,
                     double* __restrict sum, double* __restrict products) {
  const T *dy = static_cast<const T*>(pdy), *x = static_cast<const T*>(px);
  for (int64_t i = 0; i < rows; ++i, x += stride, dy += stride)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) {
      const double g = static_cast<double>(dy[j]);
      sum[j] += g;
      products[j] += g * (static_cast<double>(x[j]) - mean[j]);
    }
}

template <class T>
void row_scale(const void* px, void* py, int64_t n, double mean, double factor, double shift) {
  const T* x = static_cast<const T*>(px);
  T* y = static_cast<T*>(py);
  const T m = static_cast<T>(mean), k = static_cast<T>(factor), b = static_cast<T>(shift);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m) * k + b;
}

template <class T>
void column_scale(const void* px, void* py, int64_t stride, int64_t rows, int64_t cols, const void* pm, const void* pk,
                  const void* pb) {
  const T *x = static_cast<const T*>(px), *m = static_cast<const T*>(pm), *k = static_cast<const T*>(pk),
          *b = static_cast<const T*>(pb);
  T* y = static_cast<T*>(py);
  for (int64_t i = 0; i < rows; ++i, x += stride, y += stride)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) y[j] = (x[j] - m[j]) * k[j] + b[j];
}

template <class T>
void row_scale_backward(const void* pdy, const void* px, void* pdx, int64_t n, double mean, double factor, double shift,
                        double slope) {
  const T *dy = static_cast<const T*>(pdy), *x = static_cast<const T*>(px);
  T* dx = static_cast<T*>(pdx);
  const T m = static_cast<T>(mean), k = static_cast<T>(factor), b = static_cast<T>(shift), s = static_cast<T>(slope);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] * k - b - (x[i] - m) * s;
}

template <class T>
void column_scale_backward(const void* pdy, const void* px, void* pdx, int64_t stride, int64_t rows, int64_t cols,
                           const void* pm, const void* pk, const void* pb, const void* ps) {
  const T *dy = static_cast<const T*>(pdy), *x = static_cast<const T*>(px), *m = static_cast<const T*>(pm),
          *k = static_cast<const T*>(pk), *b = static_cast<const T*>(pb), *s = static_cast<const T*>(ps);
  T* dx = static_cast<T*>(pdx);
  for (int64_t i = 0; i < rows; ++i, x += stride, dy += stride, dx += stride)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) dx[j] = dy[j] * k[j] - b[j] - (x[j] - m[j]) * s[j];
}

template <class T>
void fill(ChannelLoops& t) {
  t.row_moments = row_moments<T>;
  t.column_moments = column_moments<T>;
  t.row_products = row_products<T>;
  t.column_products = column_products<T>;
  t.row_scale = row_scale<T>;
  t.column_scale = column_scale<T>;
  t.row_scale_backward = row_scale_backward<T>;
  t.column_scale_backward = column_scale_backward<T>;
}

}  // namespace

void fill_channels(Table& t) {
  fill<float>(t.channels[0]);
  fill<double>(t.channels[1]);
}

}  // namespace holon::kernels::HOLON_ISA
