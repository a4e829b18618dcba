// Optimizer steps. Compiled for each instruction set.
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

// What all rules do to a gradient first.
template <class T>
struct Gradient {
  T sign, decay;
  HOLON_FN explicit Gradient(const UpdateNumbers& c) : sign(c.maximize ? T(-1) : T(1)), decay(static_cast<T>(c.weight_decay)) {}
  HOLON_FN T operator()(T g, T p) const { return sign * g + decay * p; }
};

template <class T, bool momentum, bool nesterov>
HOLON_FN void sgd_row(T* p, const T* g, T* b, int64_t n, const UpdateNumbers& c) {
  const T lr = static_cast<T>(c.lr), scale = static_cast<T>(c.scale);
  const Gradient<T> gradient(c);
  // At the first step the momentum is the gradient, whatever the buffer holds (it may be uninitialised).
  const bool first = c.first;
  const T keep = static_cast<T>(c.beta1), take = first ? T(1) : static_cast<T>(c.take);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    T d = scale * gradient(g[i], p[i]);
    if constexpr (momentum) {
      const T old = first ? T(0) : b[i];
      const T m = keep * old + take * d;
      b[i] = m;
      d = nesterov ? d + keep * m : m;
    }
    p[i] -= lr * d;
  }
}

template <class T>
void sgd(void* const* a, int64_t n, const UpdateNumbers& c) {
  T *x = static_cast<T*>(a[0]), *m = static_cast<T*>(a[2]);
  const T* d = static_cast<const T*>(a[1]);
  if (!m)
    sgd_row<T, false, false>(x, d, m, n, c);
  else if (c.nesterov)
    sgd_row<T, true, true>(x, d, m, n, c);
  else
    sgd_row<T, true, false>(x, d, m, n, c);
}

template <class T, bool amsgrad>
HOLON_FN void adam_row(T* p, const T* g, T* m, T* v, T* largest, int64_t n, const UpdateNumbers& c) {
  const T b1 = static_cast<T>(c.beta1), b2 = static_cast<T>(c.beta2), a1 = static_cast<T>(1 - c.beta1), a2 = static_cast<T>(1 - c.beta2);
  const T eps = static_cast<T>(c.eps), shrink = static_cast<T>(c.shrink), lr = static_cast<T>(c.lr), root = static_cast<T>(c.root_correction);
  const Gradient<T> gradient(c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T d = gradient(g[i], p[i]);
    const T first = b1 * m[i] + a1 * d, second = b2 * v[i] + a2 * d * d;
    m[i] = first;
    v[i] = second;
    T size = second;
    if constexpr (amsgrad) {
      size = largest[i] > second ? largest[i] : second;
      largest[i] = size;
    }
    p[i] = p[i] * shrink - lr * first / (f::sqrt(size) * root + eps);
  }
}

template <class T>
void adam(void* const* a, int64_t n, const UpdateNumbers& c) {
  T *x = static_cast<T*>(a[0]), *m = static_cast<T*>(a[2]), *v = static_cast<T*>(a[3]), *l = static_cast<T*>(a[4]);
  const T* d = static_cast<const T*>(a[1]);
  if (l)
    adam_row<T, true>(x, d, m, v, l, n, c);
  else
    adam_row<T, false>(x, d, m, v, l, n, c);
}

template <class T>
void adagrad(void* const* a, int64_t n, const UpdateNumbers& c) {
  T *p = static_cast<T*>(a[0]), *sum = static_cast<T*>(a[2]);
  const T* g = static_cast<const T*>(a[1]);
  const T lr = static_cast<T>(c.lr), eps = static_cast<T>(c.eps);
  const Gradient<T> gradient(c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T d = gradient(g[i], p[i]), s = sum[i] + d * d;
    sum[i] = s;
    p[i] -= lr * d / (f::sqrt(s) + eps);
  }
}

template <class T>
void adadelta(void* const* a, int64_t n, const UpdateNumbers& c) {
  T *p = static_cast<T*>(a[0]), *squares = static_cast<T*>(a[2]), *steps = static_cast<T*>(a[3]);
  const T* g = static_cast<const T*>(a[1]);
  const T lr = static_cast<T>(c.lr), eps = static_cast<T>(c.eps), rho = static_cast<T>(c.beta1), rest = static_cast<T>(1 - c.beta1);
  const Gradient<T> gradient(c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T d = gradient(g[i], p[i]), s = rho * squares[i] + rest * d * d, old = steps[i];
    const T step = f::sqrt(old + eps) / f::sqrt(s + eps) * d;
    squares[i] = s;
    steps[i] = rho * old + rest * step * step;
    p[i] -= lr * step;
  }
}

// Without mean and momentum their pointers are null; the compiler gets a loop for each case.
template <class T, bool centered, bool momentum>
HOLON_FN void rmsprop_row(T* p, const T* g, T* squares, T* means, T* b, int64_t n, const UpdateNumbers& c) {
  const T lr = static_cast<T>(c.lr), eps = static_cast<T>(c.eps), alpha = static_cast<T>(c.beta2), rest = static_cast<T>(1 - c.beta2);
  const T keep = static_cast<T>(c.beta1);
  const Gradient<T> gradient(c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T d = gradient(g[i], p[i]);
    T s = alpha * squares[i] + rest * d * d;
    squares[i] = s;
    if constexpr (centered) {
      const T mean = alpha * means[i] + rest * d;
      means[i] = mean;
      s = s - mean * mean;
      s = s < T(0) ? T(0) : s;  // rounding may take the variance below 0
    }
    T step = d / (f::sqrt(s) + eps);
    if constexpr (momentum) {
      step = keep * b[i] + step;
      b[i] = step;
    }
    p[i] -= lr * step;
  }
}

template <class T>
void rmsprop(void* const* a, int64_t n, const UpdateNumbers& c) {
  T *p = static_cast<T*>(a[0]), *s = static_cast<T*>(a[2]), *means = static_cast<T*>(a[3]), *b = static_cast<T*>(a[4]);
  const T* g = static_cast<const T*>(a[1]);
  if (means && b)
    rmsprop_row<T, true, true>(p, g, s, means, b, n, c);
  else if (means)
    rmsprop_row<T, true, false>(p, g, s, means, b, n, c);
  else if (b)
    rmsprop_row<T, false, true>(p, g, s, means, b, n, c);
  else
    rmsprop_row<T, false, false>(p, g, s, means, b, n, c);
}

// Sums over a few elements stay in T, so that the loop is one of vectors; the sum of these sums is in double.
constexpr int64_t kSumBlock = 512;

template <class T, class F>
HOLON_FN double sum_of(int64_t n, F&& term) {
  double sum = 0;
  for (int64_t at = 0; at < n; at += kSumBlock) {
    const int64_t end = at + kSumBlock < n ? at + kSumBlock : n;
    T part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = at; i < end; ++i) part += term(i);
    sum += static_cast<double>(part);
  }
  return sum;
}

template <class T>
void sgd_norms(void* const* a, int64_t n, const UpdateNumbers&, double* sums) {
  const T *p = static_cast<const T*>(a[0]), *g = static_cast<const T*>(a[1]);
  sums[0] += sum_of<T>(n, [p](int64_t i) { return p[i] * p[i]; });
  sums[1] += sum_of<T>(n, [g](int64_t i) { return g[i] * g[i]; });
}

// The direction of Lamb is not kept: the second pass makes it again from what it is made of.
template <class T>
HOLON_FN T lamb_direction(T p, T m, T v, T correction, T root, T eps, T decay) {
  return correction * m / (f::sqrt(v) * root + eps) + decay * p;
}

template <class T>
void lamb_norms(void* const* a, int64_t n, const UpdateNumbers& c, double* sums) {
  T *p = static_cast<T*>(a[0]), *m = static_cast<T*>(a[2]), *v = static_cast<T*>(a[3]);
  const T* g = static_cast<const T*>(a[1]);
  const T b1 = static_cast<T>(c.beta1), b2 = static_cast<T>(c.beta2), a1 = static_cast<T>(1 - c.beta1), a2 = static_cast<T>(1 - c.beta2);
  const T correction = static_cast<T>(c.correction), root = static_cast<T>(c.root_correction), eps = static_cast<T>(c.eps),
          decay = static_cast<T>(c.late_decay);
  const Gradient<T> gradient(c);
  for (int64_t at = 0; at < n; at += kSumBlock) {
    const int64_t end = at + kSumBlock < n ? at + kSumBlock : n;
    T of_p = 0, of_r = 0;
#pragma omp simd reduction(+ : of_p, of_r)
    for (int64_t i = at; i < end; ++i) {
      const T d = gradient(g[i], p[i]), first = b1 * m[i] + a1 * d, second = b2 * v[i] + a2 * d * d;
      m[i] = first;
      v[i] = second;
      const T r = lamb_direction(p[i], first, second, correction, root, eps, decay);
      of_p += p[i] * p[i];
      of_r += r * r;
    }
    sums[0] += static_cast<double>(of_p);
    sums[1] += static_cast<double>(of_r);
  }
}

template <class T>
void lamb(void* const* a, int64_t n, const UpdateNumbers& c) {
  T *p = static_cast<T*>(a[0]), *m = static_cast<T*>(a[2]), *v = static_cast<T*>(a[3]);
  const T correction = static_cast<T>(c.correction), root = static_cast<T>(c.root_correction), eps = static_cast<T>(c.eps),
          decay = static_cast<T>(c.late_decay), lr = static_cast<T>(c.lr);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) p[i] -= lr * lamb_direction(p[i], m[i], v[i], correction, root, eps, decay);
}

template <class T>
double sum_squares(const void* x, int64_t n, double) {
  const T* p = static_cast<const T*>(x);
  return sum_of<T>(n, [p](int64_t i) { return p[i] * p[i]; });
}
template <class T>
double sum_abs(const void* x, int64_t n, double) {
  const T* p = static_cast<const T*>(x);
  return sum_of<T>(n, [p](int64_t i) { return f::abs(p[i]); });
}
template <class T>
double sum_powers(const void* x, int64_t n, double power) {
  const T *p = static_cast<const T*>(x), y = static_cast<T>(power);
  return sum_of<T>(n, [p, y](int64_t i) { return f::pow(f::abs(p[i]), y); });
}
template <class T>
double count_nonzero(const void* x, int64_t n, double) {
  const T* p = static_cast<const T*>(x);
  return sum_of<T>(n, [p](int64_t i) { return p[i] != T(0) ? T(1) : T(0); });
}
// A NaN anywhere is the result: it wins every comparison.
template <class T, bool largest>
double extreme(const void* x, int64_t n, double) {
  const T* p = static_cast<const T*>(x);
  T found = largest ? T(0) : static_cast<T>(__builtin_inf());
  for (int64_t i = 0; i < n; ++i) {
    const T a = f::abs(p[i]);
    found = a != a || (largest ? a > found : a < found) ? a : found;
    if (found != found) break;
  }
  return static_cast<double>(found);
}

template <class T, bool clamped>
bool scale_row(void* x, int64_t n, double factor, double low, double high) {
  T* p = static_cast<T*>(x);
  const T by = static_cast<T>(factor), least = static_cast<T>(low), most = static_cast<T>(high);
  T zero = 0;  // stays 0 as long as what is added are finite numbers times 0
#pragma omp simd reduction(+ : zero)
  for (int64_t i = 0; i < n; ++i) {
    T v = p[i];
    zero += v * T(0);
    v *= by;
    if constexpr (clamped) {
      v = v < least ? least : v;
      v = v > most ? most : v;
    }
    p[i] = v;
  }
  return zero == T(0);
}

template <class T>
void fill(Table& t, int k) {
  UpdateFn rules[] = {sgd<T>, adam<T>, adagrad<T>, adadelta<T>, rmsprop<T>, lamb<T>};
  for (int i = 0; i < static_cast<int>(UpdateRule::kCount); ++i) t.update[i][k] = rules[i];
  t.sgd_norms[k] = sgd_norms<T>;
  t.lamb_norms[k] = lamb_norms<T>;
  NormFnOf norms[] = {sum_squares<T>, sum_abs<T>, sum_powers<T>, count_nonzero<T>, extreme<T, true>, extreme<T, false>};
  for (int i = 0; i < 6; ++i) t.norm_of[i][k] = norms[i];
  t.scale[k] = scale_row<T, false>;
  t.clamp[k] = scale_row<T, true>;
}

}  // namespace

void fill_optim(Table& t) {
  fill<float>(t, 0);
  fill<double>(t, 1);
}

}  // namespace holon::kernels::HOLON_ISA
