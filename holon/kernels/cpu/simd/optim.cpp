// Optimizer steps. Compiled for each instruction set.
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

template <class T, bool momentum, bool nesterov>
HOLON_FN void sgd_row(T* p, const T* g, T* b, int64_t n, const SgdNumbers& c) {
  const T lr = static_cast<T>(c.lr), decay = static_cast<T>(c.weight_decay), sign = c.maximize ? T(-1) : T(1);
  // At the first step the momentum is the gradient, whatever the buffer holds (it may be uninitialised).
  const bool first = c.first;
  const T keep = static_cast<T>(c.momentum), take = first ? T(1) : static_cast<T>(1 - c.dampening);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    T d = sign * g[i] + decay * p[i];
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
void sgd(void* p, const void* g, void* b, int64_t n, const SgdNumbers& c) {
  T *x = static_cast<T*>(p), *m = static_cast<T*>(b);
  const T* d = static_cast<const T*>(g);
  if (!m)
    sgd_row<T, false, false>(x, d, m, n, c);
  else if (c.nesterov)
    sgd_row<T, true, true>(x, d, m, n, c);
  else
    sgd_row<T, true, false>(x, d, m, n, c);
}

template <class T, bool amsgrad>
HOLON_FN void adam_row(T* p, const T* g, T* m, T* v, T* largest, int64_t n, const AdamNumbers& c) {
  const T b1 = static_cast<T>(c.beta1), b2 = static_cast<T>(c.beta2), a1 = static_cast<T>(1 - c.beta1), a2 = static_cast<T>(1 - c.beta2);
  const T eps = static_cast<T>(c.eps), decay = static_cast<T>(c.weight_decay), shrink = static_cast<T>(c.shrink);
  const T step = static_cast<T>(c.step_size), root = static_cast<T>(c.root_correction), sign = c.maximize ? T(-1) : T(1);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T d = sign * g[i] + decay * p[i];
    const T first = b1 * m[i] + a1 * d, second = b2 * v[i] + a2 * d * d;
    m[i] = first;
    v[i] = second;
    T size = second;
    if constexpr (amsgrad) {
      size = largest[i] > second ? largest[i] : second;
      largest[i] = size;
    }
    p[i] = p[i] * shrink - step * first / (f::sqrt(size) * root + eps);
  }
}

template <class T>
void adam(void* p, const void* g, void* m, void* v, void* largest, int64_t n, const AdamNumbers& c) {
  T *x = static_cast<T*>(p), *a = static_cast<T*>(m), *b = static_cast<T*>(v), *l = static_cast<T*>(largest);
  const T* d = static_cast<const T*>(g);
  if (l)
    adam_row<T, true>(x, d, a, b, l, n, c);
  else
    adam_row<T, false>(x, d, a, b, l, n, c);
}

}  // namespace

void fill_optim(Table& t) {
  t.sgd[0] = sgd<float>;
  t.sgd[1] = sgd<double>;
  t.adam[0] = adam<float>;
  t.adam[1] = adam<double>;
}

}  // namespace holon::kernels::HOLON_ISA
