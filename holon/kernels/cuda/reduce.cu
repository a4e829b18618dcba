// Sums, products and extremes along axes, and where an extreme is.
#include "holon/kernels/reduce.h"

#include <limits>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/kernels/compute_type.h"
#include "holon/kernels/cuda/reduction.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/index.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

template <class V>
__device__ __forceinline__ V infinity(bool negative) {
  if constexpr (std::is_floating_point_v<V>)
    return negative ? -std::numeric_limits<V>::infinity() : std::numeric_limits<V>::infinity();
  else
    return negative ? std::numeric_limits<V>::min() : std::numeric_limits<V>::max();
}

// The operations: those that differ little are one, chosen between when they run. take() folds an element, merge() a
// partial result.
enum class Sums { kPlain, kMagnitudes, kSquares };
struct Summation {
  static constexpr bool kExact = false;
  Sums of = Sums::kPlain;
  template <class V>
  __device__ V start() const {
    return 0;
  }
  template <class V>
  __device__ __forceinline__ V take(V a, V x) const {
    return a + (of == Sums::kPlain ? x : of == Sums::kSquares ? x * x : x < V(0) ? -x : x);
  }
  template <class V>
  __device__ __forceinline__ V merge(V a, V b) const {
    return a + b;
  }
};
struct Product {
  static constexpr bool kExact = false;
  template <class V>
  __device__ V start() const {
    return 1;
  }
  template <class V>
  __device__ __forceinline__ V take(V a, V x) const {
    return a * x;
  }
  template <class V>
  __device__ __forceinline__ V merge(V a, V b) const {
    return a * b;
  }
};
// A NaN replaces a number and is replaced by nothing.
struct Extreme {
  static constexpr bool kExact = true;
  bool max, of_magnitudes = false, of_truths = false;
  template <class V>
  __device__ V start() const {
    return of_magnitudes ? V(0) : of_truths ? V(max ? 0 : 1) : infinity<V>(max);
  }
  template <class V>
  __device__ __forceinline__ V take(V a, V x) const {
    return merge(a, of_magnitudes && x < V(0) ? -x : x);
  }
  template <class V>
  __device__ __forceinline__ V merge(V a, V x) const {
    return ((max ? x > a : x < a) | (x != x)) ? x : a;
  }
};

template <class S, class Op>
struct Elements {
  static constexpr int kInputs = 1;
  using Stored = S;
  using Lane = Value<S>;
  using State = std::conditional_t<std::is_same_v<S, float> && !Op::kExact, double, Lane>;
  Op op;
  void* out;
  DType dtype;
  double divisor, beta;  // out = state / divisor + beta out

  __device__ Lane lane() const { return op.template start<Lane>(); }
  __device__ State state() const { return op.template start<State>(); }
  __device__ __forceinline__ void take(Lane& l, const Lane (&x)[1], int64_t, int64_t) const { l = op.take(l, x[0]); }
  __device__ __forceinline__ void fold(State& s, Lane l) const { s = op.merge(s, static_cast<State>(l)); }
  __device__ __forceinline__ State merge(State a, State b) const { return op.merge(a, b); }
  __device__ __forceinline__ void store(int64_t at, State s) const {
    if (divisor == 1 && beta == 0) return store_any(out, dtype, at, s);
    double v = static_cast<double>(s) / divisor;
    if (beta != 0) v += beta * load_any<double>(out, dtype, at);
    store_any(out, dtype, at, v);
  }
};

template <class S, class Op>
void run_in(const Op& op, const Array& a, uint32_t axes, Array& out, double divisor, double beta) {
  const Array* const in[] = {&a};
  run_reduction(Elements<S, Op>{op, out.bytes(), out.dtype, divisor, beta}, in, axes, kept_strides(a, axes, out));
}
template <class Op>
void run_as(const Op& op, const Array& a, uint32_t axes, Array& out, double divisor = 1, double beta = 0) {
  if (a.dtype == DType::kFloat64) return run_in<double>(op, a, axes, out, divisor, beta);
  if (is_floating(a.dtype)) return run_in<float>(op, a, axes, out, divisor, beta);
  run_in<int64_t>(op, a, axes, out, divisor, beta);
}

void reduce(ReduceOp op, const Array& a, uint32_t axes, Array& out) {
  int64_t count = 1;
  for (int i = 0; i < a.ndim(); ++i)
    if (axes >> i & 1u) count *= a.shape[i];
  if (out.numel() == 0) return;
  const bool extreme = op == ReduceOp::Max || op == ReduceOp::Min || op == ReduceOp::AbsMax;
  if (extreme && count == 0)
    fail_value("the largest or smallest of no elements was requested (shape {}). Reduce over axes that are not empty.",
               a.shape);
  use_device_of(out);
  switch (op) {
    case ReduceOp::Sum: return run_as(Summation{}, a, axes, out);
    case ReduceOp::Mean: return run_as(Summation{}, a, axes, out, static_cast<double>(count));
    case ReduceOp::SumSquares: return run_as(Summation{Sums::kSquares}, a, axes, out);
    case ReduceOp::SumAbs: return run_as(Summation{Sums::kMagnitudes}, a, axes, out);
    case ReduceOp::Prod: return run_as(Product{}, a, axes, out);
    case ReduceOp::Max: return run_as(Extreme{true}, a, axes, out);
    case ReduceOp::Min: return run_as(Extreme{false}, a, axes, out);
    case ReduceOp::AbsMax: return run_as(Extreme{true, true}, a, axes, out);
    case ReduceOp::Any: return run_in<Truth>(Extreme{true, false, true}, a, axes, out, 1, 0);
    case ReduceOp::All: return run_in<Truth>(Extreme{false, false, true}, a, axes, out, 1, 0);
    default: HOLON_CHECK(false, "reduce: no such operation");
  }
}

void column_sums(const Array& x, Array& out, double beta) {
  HOLON_CHECK(x.ndim() == 2 && out.ndim() == 1 && out.shape[0] == x.shape[1] && out.dtype == x.dtype,
              "column_sums: {} of {} does not fit {}.", out.shape, x.shape, name(x.dtype));
  if (out.numel() == 0 || x.dtype == DType::kBool) return;
  use_device_of(out);
  run_as(Summation{}, x, 1, out, 1, beta);
}

template <class T>
struct Place {
  T value;
  int64_t index;  // -1: of none yet
};

template <class S>
struct Places {
  static constexpr int kInputs = 1;
  using Stored = S;
  using Lane = Place<S>;
  using State = Lane;
  bool max;
  int64_t* out;

  __device__ Lane lane() const { return {S(0), -1}; }
  __device__ State state() const { return lane(); }
  __device__ __forceinline__ bool beats(S v, S other) const {
    return (max ? v > other : v < other) | ((v != v) & (other == other));
  }
  __device__ __forceinline__ void take(Lane& l, const S (&x)[1], int64_t, int64_t index) const {
    if (l.index < 0 || beats(x[0], l.value)) l = {x[0], index};
  }
  __device__ __forceinline__ void fold(State& s, const Lane& l) const { s = merge(s, l); }
  __device__ __forceinline__ State merge(const State& a, const State& b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    if (beats(b.value, a.value)) return b;
    return beats(a.value, b.value) || a.index < b.index ? a : b;
  }
  __device__ void store(int64_t at, const State& s) const { out[at] = s.index; }
};

void argreduce(bool max, const Array& a, int axis, Array& out) {
  HOLON_CHECK(out.dtype == DType::kInt64, "argreduce: the output is {}", name(out.dtype));
  if (out.numel() == 0) return;
  if (a.ndim() > 0 && a.shape[axis] == 0)
    fail_value("arg{}: axis {} of shape {} has no elements.", max ? "max" : "min", axis, a.shape);
  use_device_of(out);
  const uint32_t axes = a.ndim() > 0 ? 1u << axis : 0;
  const Dims strides = kept_strides(a, axes, out);
  const Array* const in[] = {&a};
  auto run = [&]<class S>() { run_reduction(Places<S>{max, out.data<int64_t>()}, in, axes, strides); };
  if (a.dtype == DType::kFloat64)
    run.operator()<double>();
  else if (is_floating(a.dtype))
    run.operator()<float>();
  else
    run.operator()<int64_t>();
}

int64_t count_nonzero(const Array& x) {
  if (x.numel() == 0) return 0;
  use_device_of(x);
  const Array count = Array::empty({}, DType::kInt64, x.device);
  const Array* const in[] = {&x};
  run_reduction(Elements<Truth, Summation>{{}, count.bytes(), DType::kInt64, 1, 0}, in, (1u << x.ndim()) - 1,
                Dims::filled(x.ndim(), 0));
  int64_t n = 0;
  device_runtime()->copy_to_host(count.device.index, &n, count.bytes(), sizeof n);
  return n;
}

HOLON_DEVICE_KERNEL(reduce, reduce);
HOLON_DEVICE_KERNEL(column_sums, column_sums);
HOLON_DEVICE_KERNEL(argreduce, argreduce);
HOLON_DEVICE_KERNEL(count_nonzero, count_nonzero);

}  // namespace
}  // namespace holon::kernels::cuda
