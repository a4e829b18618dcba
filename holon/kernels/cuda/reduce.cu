// Sums, products and extremes along axes, and where an extreme stands.
#include "holon/kernels/cpu/reduce.h"

#include "holon/base/error.h"
#include "holon/kernels/cpu/gemm.h"
#include "holon/kernels/cpu/index.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/cpu/search.h"
#include "holon/kernels/cuda/reduction.h"
#include "holon/kernels/device.h"

namespace holon::kernels::cuda {
namespace {

template <class V>
__device__ __forceinline__ V infinity(bool negative) {
  if constexpr (std::is_floating_point_v<V>)
    return negative ? -std::numeric_limits<V>::infinity() : std::numeric_limits<V>::infinity();
  else
    return negative ? std::numeric_limits<V>::min() : std::numeric_limits<V>::max();
}

struct OfSum {
  static constexpr bool kExact = false;
  template <class V>
  __device__ static V start() {
    return 0;
  }
  template <class V>
  __device__ __forceinline__ static V take(V a, V x) {
    return a + x;
  }
  template <class V>
  __device__ __forceinline__ static V merge(V a, V b) {
    return a + b;
  }
};
struct OfSquares : OfSum {
  template <class V>
  __device__ __forceinline__ static V take(V a, V x) {
    return a + x * x;
  }
};
struct OfMagnitudes : OfSum {
  template <class V>
  __device__ __forceinline__ static V take(V a, V x) {
    return a + (x < V(0) ? -x : x);
  }
};
struct OfProduct {
  static constexpr bool kExact = false;
  template <class V>
  __device__ static V start() {
    return 1;
  }
  template <class V>
  __device__ __forceinline__ static V take(V a, V x) {
    return a * x;
  }
  template <class V>
  __device__ __forceinline__ static V merge(V a, V b) {
    return a * b;
  }
};
template <bool kMax>
struct OfExtreme {
  static constexpr bool kExact = true;
  template <class V>
  __device__ static V start() {
    return infinity<V>(kMax);
  }
  template <class V>
  __device__ __forceinline__ static V take(V a, V x) {
    return ((kMax ? x > a : x < a) | (x != x)) ? x : a;
  }
  template <class V>
  __device__ __forceinline__ static V merge(V a, V b) {
    return take(a, b);
  }
};
struct OfLargestMagnitude : OfExtreme<true> {
  template <class V>
  __device__ static V start() {
    return 0;
  }
  template <class V>
  __device__ __forceinline__ static V take(V a, V x) {
    return OfExtreme<true>::take(a, x < V(0) ? -x : x);
  }
};
struct OfAny : OfExtreme<true> {
  template <class V>
  __device__ static V start() {
    return 0;
  }
};
struct OfAll : OfExtreme<false> {
  template <class V>
  __device__ static V start() {
    return 1;
  }
};

template <class S, class Op>
struct Elements {
  static constexpr int kInputs = 1;
  using Stored = S;
  using Lane = Value<S>;
  using State = std::conditional_t<std::is_same_v<S, float> && !Op::kExact, double, Lane>;
  void* out;
  DType dtype;
  double divisor, beta;  // out = state / divisor + beta out

  __device__ Lane lane() const { return Op::template start<Lane>(); }
  __device__ State state() const { return Op::template start<State>(); }
  __device__ __forceinline__ void take(Lane& l, const Lane (&x)[1], int64_t, int64_t) const { l = Op::take(l, x[0]); }
  __device__ __forceinline__ void fold(State& s, Lane l) const { s = Op::merge(s, static_cast<State>(l)); }
  __device__ __forceinline__ State merge(State a, State b) const { return Op::merge(a, b); }
  __device__ __forceinline__ void store(int64_t at, State s) const {
    if (divisor == 1 && beta == 0) return store_any(out, dtype, at, s);
    double v = static_cast<double>(s) / divisor;
    if (beta != 0) v += beta * load_any<double>(out, dtype, at);
    store_any(out, dtype, at, v);
  }
};

template <class Op>
void run_as(const Array& a, uint32_t axes, Array& out, double divisor, double beta = 0) {
  const Dims strides = kept_strides(a, axes, out);
  const Array* const in[] = {&a};
  auto run = [&]<class S>() { run_reduction(Elements<S, Op>{out.bytes(), out.dtype, divisor, beta}, in, axes, strides); };
  if constexpr (std::is_same_v<Op, OfAny> || std::is_same_v<Op, OfAll>)
    run.template operator()<Truth>();
  else if (a.dtype == DType::kFloat64)
    run.template operator()<double>();
  else if (is_floating(a.dtype))
    run.template operator()<float>();
  else
    run.template operator()<int64_t>();
}

void reduce(ReduceOp op, const Array& a, uint32_t axes, Array& out) {
  int64_t count = 1;
  for (int i = 0; i < a.ndim(); ++i)
    if (axes >> i & 1u) count *= a.shape[i];
  if (out.numel() == 0) return;
  const bool extreme = op == ReduceOp::Max || op == ReduceOp::Min || op == ReduceOp::AbsMax;
  if (extreme && count == 0)
    fail_value("the largest or smallest of no elements was asked for (shape {}). Reduce over axes that are not empty.", a.shape);
  use_device_of(out);
  switch (op) {
    case ReduceOp::Sum: return run_as<OfSum>(a, axes, out, 1);
    case ReduceOp::Mean: return run_as<OfSum>(a, axes, out, static_cast<double>(count));
    case ReduceOp::Prod: return run_as<OfProduct>(a, axes, out, 1);
    case ReduceOp::Max: return run_as<OfExtreme<true>>(a, axes, out, 1);
    case ReduceOp::Min: return run_as<OfExtreme<false>>(a, axes, out, 1);
    case ReduceOp::SumSquares: return run_as<OfSquares>(a, axes, out, 1);
    case ReduceOp::AbsMax: return run_as<OfLargestMagnitude>(a, axes, out, 1);
    case ReduceOp::SumAbs: return run_as<OfMagnitudes>(a, axes, out, 1);
    case ReduceOp::Any: return run_as<OfAny>(a, axes, out, 1);
    case ReduceOp::All: return run_as<OfAll>(a, axes, out, 1);
    default: HOLON_CHECK(false, "reduce: no such operation");
  }
}

void column_sums(const Array& x, Array& out, double beta) {
  HOLON_CHECK(x.ndim() == 2 && out.ndim() == 1 && out.shape[0] == x.shape[1] && out.dtype == x.dtype,
              "column_sums: {} of {} does not fit {}.", out.shape, x.shape, name(x.dtype));
  if (out.numel() == 0 || x.dtype == DType::kBool) return;
  use_device_of(out);
  run_as<OfSum>(x, 1, out, 1, beta);
}

template <class T>
struct Place {
  T value;
  int64_t index;  // -1: of none yet
};

template <class S, bool kMax>
struct Places {
  static constexpr int kInputs = 1;
  using Stored = S;
  using Lane = Place<S>;
  using State = Lane;
  int64_t* out;

  __device__ Lane lane() const { return {S(0), -1}; }
  __device__ State state() const { return lane(); }
  __device__ __forceinline__ static bool beats(S v, S other) { return (kMax ? v > other : v < other) | ((v != v) & (other == other)); }
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
  if (a.ndim() > 0 && a.shape[axis] == 0) fail_value("arg{}: axis {} of shape {} has no elements.", max ? "max" : "min", axis, a.shape);
  use_device_of(out);
  const uint32_t axes = a.ndim() > 0 ? 1u << axis : 0;
  const Dims strides = kept_strides(a, axes, out);
  const Array* const in[] = {&a};
  auto run = [&]<class S>() {
    if (max)
      run_reduction(Places<S, true>{out.data<int64_t>()}, in, axes, strides);
    else
      run_reduction(Places<S, false>{out.data<int64_t>()}, in, axes, strides);
  };
  if (a.dtype == DType::kFloat64)
    run.operator()<double>();
  else if (is_floating(a.dtype))
    run.operator()<float>();
  else
    run.operator()<int64_t>();
}

int64_t read_number(const Array& a) {
  int64_t v = 0;
  check(cudaMemcpyAsync(&v, a.bytes(), sizeof v, cudaMemcpyDeviceToHost, stream()), "a copy to the host");
  check(cudaStreamSynchronize(stream()), "a copy to the host");
  return v;
}

int64_t count_nonzero(const Array& x) {
  if (x.numel() == 0) return 0;
  use_device_of(x);
  const Array count = Array::empty({}, DType::kInt64, x.device);
  const Array* const in[] = {&x};
  run_reduction(Elements<Truth, OfSum>{count.bytes(), DType::kInt64, 1, 0}, in, (1u << x.ndim()) - 1, Dims::filled(x.ndim(), 0));
  return read_number(count);
}

HOLON_DEVICE_KERNEL(reduce, reduce);
HOLON_DEVICE_KERNEL(column_sums, column_sums);
HOLON_DEVICE_KERNEL(argreduce, argreduce);
HOLON_DEVICE_KERNEL(count_nonzero, count_nonzero);

}  // namespace
}  // namespace holon::kernels::cuda
