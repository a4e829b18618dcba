// Softmax, normalisation and cross-entropy over rows. Compiled for each instruction set. Rows are read several times
// while they are in the nearest cache. Sums of blocks are added up in double.
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/cpu/vectors.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

constexpr int64_t kBlock = 4096;

#define HOLON_INLINE_LAMBDA __attribute__((always_inline))

template <class T>
HOLON_FN T sum_lanes(Vec<T> v) {
  return fold_lanes<T>(v, [](auto p, auto q) HOLON_INLINE_LAMBDA { return p + q; });
}

// The sum of f(x[i], y[i]); f takes vectors and elements.
template <class T, class F>
HOLON_FN double sum_rows(const T* x, const T* y, int64_t n, F f) {
  constexpr int w = Simd<T>::kWidth;
  double total = 0;
  while (n >= w) {
    const int64_t m = (n < kBlock ? n : kBlock) / w * w;
    Vec<T> a{}, b{}, c{}, d{};
    int64_t i = 0;
    for (; i + 4 * w <= m; i += 4 * w) {
      a += f(load(x + i), load(y + i));
      b += f(load(x + i + w), load(y + i + w));
      c += f(load(x + i + 2 * w), load(y + i + 2 * w));
      d += f(load(x + i + 3 * w), load(y + i + 3 * w));
    }
    for (; i < m; i += w) a += f(load(x + i), load(y + i));
    a = (a + b) + (c + d);
    total += static_cast<double>(sum_lanes<T>(a));
    x += m;
    y += m;
    n -= m;
  }
  for (int64_t i = 0; i < n; ++i) total += static_cast<double>(f(x[i], y[i]));
  return total;
}

// The largest element; NaNs are passed over (they come back through the exponentials).
template <class T>
HOLON_FN T max_of(const T* x, int64_t n) {
  constexpr int w = Simd<T>::kWidth;
  T best = static_cast<T>(-__builtin_inf());
  int64_t i = 0;
  if (n >= w) {
    Vec<T> a = load(x), b = a, c = a, d = a;
    for (; i + 4 * w <= n; i += 4 * w) {
      Vec<T> p = load(x + i), q = load(x + i + w), r = load(x + i + 2 * w), s = load(x + i + 3 * w);
      a = p > a ? p : a;
      b = q > b ? q : b;
      c = r > c ? r : c;
      d = s > d ? s : d;
    }
    for (; i + w <= n; i += w) {
      Vec<T> p = load(x + i);
      a = p > a ? p : a;
    }
    a = b > a ? b : a;
    c = d > c ? d : c;
    a = c > a ? c : a;
    best = fold_lanes<T>(a, [](auto p, auto q) HOLON_INLINE_LAMBDA { return p > q ? p : q; });
  }
  for (; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// The sum of exp(scale (x - m)), with the terms in y unless it is null.
template <class T, bool keep>
HOLON_FN double exponentials(const T* x, T* y, int64_t n, T m, T scale) {
  double total = 0;
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t k = n - at < kBlock ? n - at : kBlock;
    T s = 0;
    int64_t i = 0;
    if constexpr (!keep) {
      // The lanes of a reduction are added up one after the other, which a short row waits for.
      constexpr int w = Simd<T>::kWidth;
      Vec<T> sums{};
      for (; i + w <= k; i += w) {
        alignas(kVectorBytes) T terms[w];
#pragma omp simd
        for (int l = 0; l < w; ++l) terms[l] = f::exp_nonpositive((x[at + i + l] - m) * scale);
        sums += load(terms);
      }
      if (i > 0) s = sum_lanes<T>(sums);
    }
#pragma omp simd reduction(+ : s)
    for (int64_t j = i; j < k; ++j) {
      T e = f::exp_nonpositive((x[at + j] - m) * scale);
      if (keep) y[at + j] = e;
      s += e;
    }
    total += static_cast<double>(s);
  }
  return total;
}

template <class T>
void softmax(const void* px, void* py, int64_t n, double scale, int64_t valid) {
  const T* x = static_cast<const T*>(px);
  T* y = static_cast<T*>(py);
  if (valid > 0) {
    const T m = max_of(x, valid);
    const T k = static_cast<T>(1.0 / exponentials<T, true>(x, y, valid, m, static_cast<T>(scale)));
#pragma omp simd
    for (int64_t i = 0; i < valid; ++i) y[i] *= k;
  }
  for (int64_t i = valid; i < n; ++i) y[i] = 0;
}

template <class T>
void sum_exp(const void* px, int64_t n, double* most, double* sum) {
  const T* x = static_cast<const T*>(px);
  const T m = max_of(x, n);
  *most = static_cast<double>(m);
  *sum = 1;
  // Infinite logits: exp(inf - inf) would be NaN.
  if (m == static_cast<T>(-__builtin_inf()) || m == static_cast<T>(__builtin_inf())) {
    for (int64_t i = 0; i < n; ++i)
      if (x[i] != x[i]) *most = static_cast<double>(x[i]);
    return;
  }
  *sum = exponentials<T, false>(x, nullptr, n, m, T(1));
}

template <class T>
void log_softmax(const void* px, void* py, int64_t n, double, int64_t) {
  const T* x = static_cast<const T*>(px);
  T* y = static_cast<T*>(py);
  const T m = max_of(x, n);
  // x - m is exact for the elements that matter; the logarithm is small.
  const T k = static_cast<T>(__builtin_log(exponentials<T, false>(x, nullptr, n, m, T(1))));
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - m) - k;
}

template <class T>
void softmax_backward(const void* pdy, const void* py, void* pdx, int64_t n, double scale) {
  const T *dy = static_cast<const T*>(pdy), *y = static_cast<const T*>(py);
  T* dx = static_cast<T*>(pdx);
  const T s = static_cast<T>(sum_rows(dy, y, n, [](auto a, auto b) HOLON_INLINE_LAMBDA { return a * b; }));
  const T k = static_cast<T>(scale);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = k * y[i] * (dy[i] - s);
}

template <class T>
void log_softmax_backward(const void* pdy, const void* py, void* pdx, int64_t n, double) {
  const T *dy = static_cast<const T*>(pdy), *y = static_cast<const T*>(py);
  T* dx = static_cast<T*>(pdx);
  const T s = static_cast<T>(sum_rows(dy, dy, n, [](auto a, auto) HOLON_INLINE_LAMBDA { return a; }));
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - f::exp_nonpositive(y[i]) * s;
}

template <class T, bool log>
void softmax_columns(const void* px, int64_t xs, void* py, int64_t ys, int64_t rows, int64_t cols) {
  const T* x = static_cast<const T*>(px);
  T* y = static_cast<T*>(py);
  T m[kSoftmaxCols], s[kSoftmaxCols];
  for (int64_t j = 0; j < cols; ++j) m[j] = x[j], s[j] = 0;
  for (int64_t i = 1; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) m[j] = x[i * xs + j] > m[j] ? x[i * xs + j] : m[j];
  for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) {
      T e = f::exp_nonpositive(x[i * xs + j] - m[j]);
      if (!log) y[i * ys + j] = e;
      s[j] += e;
    }
  for (int64_t j = 0; j < cols; ++j)
    s[j] = log ? static_cast<T>(__builtin_log(static_cast<double>(s[j]))) : T(1) / s[j];
  for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) y[i * ys + j] = log ? (x[i * xs + j] - m[j]) - s[j] : y[i * ys + j] * s[j];
}

template <class T, bool log>
void softmax_backward_columns(const void* pdy, int64_t ds, const void* py, int64_t ys, void* pdx, int64_t xs,
                              int64_t rows, int64_t cols) {
  const T *dy = static_cast<const T*>(pdy), *y = static_cast<const T*>(py);
  T* dx = static_cast<T*>(pdx);
  T s[kSoftmaxCols];
  for (int64_t j = 0; j < cols; ++j) s[j] = 0;
  for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) s[j] += log ? dy[i * ds + j] : dy[i * ds + j] * y[i * ys + j];
  for (int64_t i = 0; i < rows; ++i)
#pragma omp simd
    for (int64_t j = 0; j < cols; ++j) {
      const T g = dy[i * ds + j], v = y[i * ys + j];
      dx[i * xs + j] = log ? g - f::exp_nonpositive(v) * s[j] : v * (g - s[j]);
    }
}

template <class T>
void cross_entropy_backward(const void* px, void* pdx, int64_t n, double lse, double g, double even) {
  const T* x = static_cast<const T*>(px);
  T* dx = static_cast<T*>(pdx);
  const T l = static_cast<T>(lse), k = static_cast<T>(g), e = static_cast<T>(even);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dx[i] = k * (f::exp_nonpositive(x[i] - l) - e);
}

template <class T, bool centered>
void norm(const void* px, const void* pw, const void* pb, double eps, void* py, int64_t n, double* mean, double* rstd) {
  const T *x = static_cast<const T*>(px), *w = static_cast<const T*>(pw), *b = static_cast<const T*>(pb);
  T* y = static_cast<T*>(py);
  const double count = static_cast<double>(n);
  const double m = centered ? sum_rows(x, x, n, [](auto a, auto) HOLON_INLINE_LAMBDA { return a; }) / count : 0.0;
  const T c = static_cast<T>(m);
  const double v = sum_rows(x, x, n, [c](auto a, auto) HOLON_INLINE_LAMBDA { return (a - c) * (a - c); }) / count;
  const double r = 1.0 / __builtin_sqrt(v + eps);
  const T k = static_cast<T>(r);
  if (w && b) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - c) * k * w[i] + b[i];
  } else if (w) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - c) * k * w[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - c) * k;
    if (b)
      for (int64_t i = 0; i < n; ++i) y[i] += b[i];
  }
  *mean = m;
  *rstd = r;
}

template <class T, bool centered, bool weighted, bool adds>
HOLON_FN void norm_backward_row(const T* dy, const T* x, const T* w, T m, T r, const T* plus, T* dx, T* dw, T* db,
                                int64_t n) {
  constexpr int width = Simd<T>::kWidth;
  // sum(dy w) and sum(dy w xhat) in one pass, block by block.
  double s = 0, q = 0;
  int64_t i = 0;
  while (n - i >= width) {
    const int64_t end = i + (n - i < kBlock ? n - i : kBlock) / width * width;
    Vec<T> s0{}, s1{}, q0{}, q1{};
    for (; i + 2 * width <= end; i += 2 * width) {
      Vec<T> g = load(dy + i), h = load(dy + i + width);
      if constexpr (weighted) g *= load(w + i), h *= load(w + i + width);
      s0 += g;
      s1 += h;
      q0 += g * (load(x + i) - m);
      q1 += h * (load(x + i + width) - m);
    }
    for (; i < end; i += width) {
      Vec<T> g = load(dy + i);
      if constexpr (weighted) g *= load(w + i);
      s0 += g;
      q0 += g * (load(x + i) - m);
    }
    s0 += s1;
    q0 += q1;
    s += static_cast<double>(sum_lanes<T>(s0));
    q += static_cast<double>(sum_lanes<T>(q0));
  }
  for (; i < n; ++i) {
    const T g = weighted ? dy[i] * w[i] : dy[i];
    s += static_cast<double>(g);
    q += static_cast<double>(g * (x[i] - m));
  }
  const double count = static_cast<double>(n), k = static_cast<double>(r);
  const T c1 = centered ? static_cast<T>(s / count) : T(0), c2 = static_cast<T>(q * k / count);
  if (dw && db) {
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const T h = (x[j] - m) * r, d = dy[j], g = weighted ? d * w[j] : d;
      dw[j] += d * h;
      db[j] += d;
      const T slope = r * (g - c1 - h * c2);
      dx[j] = adds ? slope + plus[j] : slope;
    }
    return;
  }
#pragma omp simd
  for (int64_t j = 0; j < n; ++j) {
    const T h = (x[j] - m) * r, g = weighted ? dy[j] * w[j] : dy[j];
    if (dw) dw[j] += dy[j] * h;
    if (db) db[j] += dy[j];  // before dx, which may be dy
    const T slope = r * (g - c1 - h * c2);
    dx[j] = adds ? slope + plus[j] : slope;
  }
}

template <class T, bool centered, bool weighted>
HOLON_FN void norm_backward_with(const T* dy, const T* x, const T* w, T m, T r, const T* plus, T* dx, T* dw, T* db,
                                 int64_t n) {
  plus ? norm_backward_row<T, centered, weighted, true>(dy, x, w, m, r, plus, dx, dw, db, n)
       : norm_backward_row<T, centered, weighted, false>(dy, x, w, m, r, nullptr, dx, dw, db, n);
}

template <class T, bool centered>
void norm_backward(const void* dy, const void* x, const void* w, double mean, double rstd, const void* plus, void* dx,
                   void* dw, void* db, int64_t n) {
  const T *a = static_cast<const T*>(dy), *b = static_cast<const T*>(x), *c = static_cast<const T*>(w),
          *p = static_cast<const T*>(plus);
  const T m = static_cast<T>(mean), r = static_cast<T>(rstd);
  T *to = static_cast<T*>(dx), *to_w = static_cast<T*>(dw), *to_b = static_cast<T*>(db);
  w ? norm_backward_with<T, centered, true>(a, b, c, m, r, p, to, to_w, to_b, n)
    : norm_backward_with<T, centered, false>(a, b, c, m, r, p, to, to_w, to_b, n);
}

template <class T>
void fill(Table& t, int k) {
  t.softmax[k] = softmax<T>;
  t.log_softmax[k] = log_softmax<T>;
  t.softmax_backward[k] = softmax_backward<T>;
  t.log_softmax_backward[k] = log_softmax_backward<T>;
  t.softmax_columns[k] = softmax_columns<T, false>;
  t.log_softmax_columns[k] = softmax_columns<T, true>;
  t.softmax_backward_columns[k] = softmax_backward_columns<T, false>;
  t.log_softmax_backward_columns[k] = softmax_backward_columns<T, true>;
  t.sum_exp[k] = sum_exp<T>;
  t.cross_entropy_backward[k] = cross_entropy_backward<T>;
  t.layer_norm[k] = norm<T, true>;
  t.rms_norm[k] = norm<T, false>;
  t.layer_norm_backward[k] = norm_backward<T, true>;
  t.rms_norm_backward[k] = norm_backward<T, false>;
}

}  // namespace

void fill_rows(Table& t) {
  fill<float>(t, 0);
  fill<double>(t, 1);
}

}  // namespace holon::kernels::HOLON_ISA
