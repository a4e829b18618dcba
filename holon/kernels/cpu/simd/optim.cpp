// Optimizer steps. Compiled for each instruction set.
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/functors.h"
#include "holon/kernels/update_rules.h"

namespace holon::kernels::HOLON_ISA {

namespace {

// States that a rule does not touch have null pointers: any other memory replaces them.
template <class Rule, class T>
HOLON_FN void row(void* const* a, int64_t n, const UpdateNumbers& c) {
  T* p = static_cast<T*>(a[0]);
  const T* g = static_cast<const T*>(a[1]);
  T* x = Rule::kTouched & 1 ? static_cast<T*>(a[2]) : p;
  T* y = Rule::kTouched & 2 ? static_cast<T*>(a[3]) : p;
  T* z = Rule::kTouched & 4 ? static_cast<T*>(a[4]) : p;
  const Rule rule(c);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) rule(p[i], g[i], x[i], y[i], z[i]);
}

template <class T>
void sgd(void* const* a, int64_t n, const UpdateNumbers& c) {
  if (!a[2])
    row<rules::Sgd<T, false, false>, T>(a, n, c);
  else if (c.nesterov)
    row<rules::Sgd<T, true, true>, T>(a, n, c);
  else
    row<rules::Sgd<T, true, false>, T>(a, n, c);
}
template <class T>
void adam(void* const* a, int64_t n, const UpdateNumbers& c) {
  a[4] ? row<rules::Adam<T, true>, T>(a, n, c) : row<rules::Adam<T, false>, T>(a, n, c);
}
template <class T>
void rmsprop(void* const* a, int64_t n, const UpdateNumbers& c) {
  if (a[3] && a[4])
    row<rules::Rmsprop<T, true, true>, T>(a, n, c);
  else if (a[3])
    row<rules::Rmsprop<T, true, false>, T>(a, n, c);
  else if (a[4])
    row<rules::Rmsprop<T, false, true>, T>(a, n, c);
  else
    row<rules::Rmsprop<T, false, false>, T>(a, n, c);
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

template <class T>
void lamb_norms(void* const* a, int64_t n, const UpdateNumbers& c, double* sums) {
  T *p = static_cast<T*>(a[0]), *m = static_cast<T*>(a[2]), *v = static_cast<T*>(a[3]);
  const T* g = static_cast<const T*>(a[1]);
  const rules::LambAverages<T> rule(c);
  for (int64_t at = 0; at < n; at += kSumBlock) {
    const int64_t end = at + kSumBlock < n ? at + kSumBlock : n;
    T of_p = 0, of_r = 0;
#pragma omp simd reduction(+ : of_p, of_r)
    for (int64_t i = at; i < end; ++i) {
      const T r = rule(p[i], g[i], m[i], v[i]);
      of_p += p[i] * p[i];
      of_r += r * r;
    }
    sums[0] += static_cast<double>(of_p);
    sums[1] += static_cast<double>(of_r);
  }
}

template <class T, NormKind kind>
double norm_sum(const void* x, int64_t n, double power) {
  const T *p = static_cast<const T*>(x), y = static_cast<T>(power);
  // In double, where squares of floats are exact: the norm of a tensor hardly depends on how ranks divide it.
  return sum_of<double>(n, [p, y](int64_t i) {
    if constexpr (kind == NormKind::kPowers)
      return static_cast<double>(rules::norm_term<kind>(p[i], y));
    else
      return rules::norm_term<kind>(static_cast<double>(p[i]), 0.0);
  });
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
    const T v = p[i];
    zero += v * T(0);
    p[i] = rules::scaled<clamped>(v, by, least, most);
  }
  return zero == T(0);
}

template <class T>
void fill(Table& t, int k) {
  UpdateFn steps[] = {
      sgd<T>, adam<T>, row<rules::Adagrad<T>, T>, row<rules::Adadelta<T>, T>, rmsprop<T>, row<rules::Lamb<T>, T>};
  for (int i = 0; i < static_cast<int>(UpdateRule::kCount); ++i) t.update[i][k] = steps[i];
  t.sgd_norms[k] = sgd_norms<T>;
  t.lamb_norms[k] = lamb_norms<T>;
  NormFnOf norms[] = {norm_sum<T, NormKind::kSquares>,
                      norm_sum<T, NormKind::kSum>,
                      norm_sum<T, NormKind::kPowers>,
                      norm_sum<T, NormKind::kCount>,
                      extreme<T, true>,
                      extreme<T, false>};
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
