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

// Columns are added up in warps, of which each thread has 16 bytes of a row: eight warps take rows in turn, blockIdx.y
// a part of them.
constexpr int kWarpsOfBlock = 8;
template <class T>
struct ColumnSums {
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Result = Elements<S, Summation>;
  using State = typename Result::State;
  static constexpr int kColumns = kPack<T> * kWarp;  // of a block
};
template <class T>
__global__ void __launch_bounds__(kWarpsOfBlock* kWarp)
    sum_columns(typename ColumnSums<T>::Result r, const T* x, int64_t rows, int64_t columns, int64_t row_step,
                int64_t per_part, int64_t out_step, typename ColumnSums<T>::State* parts) {
  using State = typename ColumnSums<T>::State;
  constexpr int kN = kPack<T>, kUnroll = 4, kRounds = 16;
  HOLON_SHARED(State, of_warps, kWarpsOfBlock * kN * kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t begin = blockIdx.y * per_part, end = begin + per_part < rows ? begin + per_part : rows,
                column = (int64_t{blockIdx.x} * kWarp + lane) * kN;
  State total[kN] = {};
  for (int64_t row = begin + warp; row < end && column < columns;) {
    typename ColumnSums<T>::S sum[kN] = {};
    for (int round = 0; round < kRounds && row < end; ++round, row += kUnroll * kWarpsOfBlock) {
      Pack<T, kN> in[kUnroll] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (row + u * kWarpsOfBlock < end)
          in[u] = *reinterpret_cast<const Pack<T, kN>*>(x + (row + u * kWarpsOfBlock) * row_step + column);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
#pragma unroll
        for (int e = 0; e < kN; ++e) sum[e] += widen(in[u].v[e]);
    }
#pragma unroll
    for (int e = 0; e < kN; ++e) total[e] += sum[e];
  }
#pragma unroll
  for (int e = 0; e < kN; ++e) of_warps[(warp * kN + e) * kWarp + lane] = total[e];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kN * kWarp; i += kWarpsOfBlock * kWarp) {
    const int64_t at = (int64_t{blockIdx.x} * kWarp + i % kWarp) * kN + i / kWarp;
    if (at >= columns) continue;
    State sum = of_warps[i];
#pragma unroll
    for (int w = 1; w < kWarpsOfBlock; ++w) sum += of_warps[w * kN * kWarp + i];
    if (parts)
      parts[blockIdx.y * columns + at] = sum;
    else
      r.store(at * out_step, sum);
  }
}

// out[n] = the sums of x's columns / divisor + beta * out, by vectors of 16 bytes. False, with nothing done: x has no
// rows of such, or too few columns for warps. Pre: x is [m, n], of a floating dtype.
bool vector_sums(const Array& x, const Array& out, double divisor, double beta) {
  bool done = false;
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kN = kPack<T>;
    const int64_t rows = x.shape[0], columns = x.shape[1], step = x.strides[0];
    if (rows == 0 || x.strides[1] != 1 || columns % kN != 0 || 2 * columns < ColumnSums<T>::kColumns ||
        step % kN != 0 || reinterpret_cast<uintptr_t>(x.bytes()) % 16 != 0)
      return;
    const typename ColumnSums<T>::Result r{{}, out.bytes(), out.dtype, divisor, beta};
    const int64_t blocks = (columns + ColumnSums<T>::kColumns - 1) / ColumnSums<T>::kColumns,
                  wanted = int64_t{4} * multiprocessors(),
                  most = std::clamp<int64_t>(wanted / blocks, 1, (rows + 127) / 128),
                  per_part = (rows + most - 1) / most, splits = (rows + per_part - 1) / per_part;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(splits));
    const Scratch parts(splits > 1 ? static_cast<size_t>(splits * columns) * sizeof(typename ColumnSums<T>::State) : 0);
    auto* to = splits > 1 ? parts.data<typename ColumnSums<T>::State>() : nullptr;
    launch(sum_columns<T>, grid, kWarpsOfBlock * kWarp, 0, r, x.data<T>(), rows, columns, step, per_part,
           out.strides[0], to);
    if (splits > 1)
      launch(reduce_parts<typename ColumnSums<T>::Result>, blocks_for(columns, kWarp), 256, 0, r,
             Strided<2>({columns}, {{0}, {out.strides[0]}}), to, splits, 8, true);
    done = true;
  });
  return done;
}

// The same for sums over all leading axes but the last ones, of arrays without gaps.
bool vector_sums_over(const Array& a, uint32_t axes, const Array& out, double divisor) {
  int leading = 0;
  while (leading < a.ndim() && axes >> leading & 1u) ++leading;
  if (leading == 0 || leading == a.ndim() || axes >> leading != 0 || !is_floating(a.dtype) || !a.is_contiguous() ||
      !out.is_contiguous())
    return false;
  const int64_t columns = out.numel(), rows = a.numel() / columns;
  return vector_sums(a.view({rows, columns}, {columns, 1}), out.view({columns}, {1}), divisor, 0);
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
    case ReduceOp::Sum:
    case ReduceOp::Mean: {
      const double divisor = op == ReduceOp::Mean ? static_cast<double>(count) : 1;
      if (!vector_sums_over(a, axes, out, divisor)) run_as(Summation{}, a, axes, out, divisor);
      return;
    }
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
  if (is_floating(x.dtype) && vector_sums(x, out, 1, beta)) return;
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
