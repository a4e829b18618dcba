// Scans along one axis. A scan is a fold of elements from the left (or right) whose partial results are all kept; its
// state combines associatively, so that threads fold pieces of a row first and then join them, always in the same
// order. Few long rows are cut into parts: their totals are folded first and carried into them.
#include "holon/kernels/scan.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/kernels/cuda/reduction.h"
#include "holon/kernels/functors.h"
#include "holon/kernels/reduce.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

namespace f = HOLON_ISA::f;

constexpr int kThreads = 256, kEach = 4, kTile = kThreads * kEach;

// Rows of some arrays, for scans S:
//   State (of whole 4 bytes), kBackwards, identity(), join(earlier, later) -> state,
//   load(at, i, n) -> state of element i of the row at `at`, store(at, i, n, inclusive, exclusive)
template <int kArrays>
struct Lines {
  Strided<kArrays> rows;
  int64_t length = 1;
  RowArray array[kArrays];
  bool columns = false;
  int64_t parts = 1, per_part = 0;

  Lines(const Array* const (&arrays)[kArrays], int axis) {
    const Array& x = *arrays[0];
    const RowSet<kArrays> set(arrays, x.ndim() ? axis : 0, x.ndim() ? 1 : 0, false);
    for (auto* a : arrays) HOLON_CHECK(a->shape == x.shape, "scan: {} with {}", a->shape, x.shape);
    rows = set.rows;
    length = set.length;
    columns = set.columns;
    std::copy_n(set.array, kArrays, array);
    const int64_t wanted = int64_t{4} * multiprocessors();
    if (!columns && rows.count < wanted / 2 && length > 4 * kTile)
      parts = std::min(wanted / rows.count, (length + kTile - 1) / kTile);
    per_part = ((length + parts - 1) / parts + kTile - 1) / kTile * kTile;
    parts = (length + per_part - 1) / per_part;
  }
};

template <class S>
__device__ __forceinline__ typename S::State shuffle_up(const typename S::State& v, int by) {
  static_assert(sizeof(v) % 4 == 0);
  unsigned words[sizeof(v) / 4];
  memcpy(words, &v, sizeof v);
#pragma unroll
  for (unsigned& w : words) w = __shfl_up_sync(kAllLanes, w, static_cast<unsigned>(by));
  typename S::State out;
  memcpy(&out, words, sizeof out);
  return out;
}

// What comes before this thread's state among those of the block, and the state of all. All threads call it.
template <class S>
__device__ __forceinline__ typename S::State before_in_block(const S& s, typename S::State v, typename S::State* all) {
  using State = typename S::State;
  HOLON_SHARED(State, of_warps, kWarp);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int o = 1; o < kWarp; o *= 2) {
    const State left = shuffle_up<S>(v, o);
    if (lane >= o) v = s.join(left, v);
  }
  State before = shuffle_up<S>(v, 1);
  if (lane == 0) before = s.identity();
  __syncthreads();  // of_warps may still be read for an earlier tile
  if (lane == kWarp - 1) of_warps[warp] = v;
  __syncthreads();
  State carried = s.identity();
  *all = s.identity();
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w == warp) carried = *all;
    *all = s.join(*all, of_warps[w]);
  }
  return s.join(carried, before);
}

// Block (x, y): rows by x, parts by y. totals: where the parts' states go, or (carries) what comes before each of them.
template <class S, bool kTotals>
__global__ void __launch_bounds__(kThreads) scan_rows(S s, Lines<S::kArrays> lines, typename S::State* parts) {
  using State = typename S::State;
  HOLON_SHARED(State, tile, kTile);
  const int64_t n = lines.length, part = blockIdx.y, begin = part * lines.per_part;
  const int64_t end = begin + lines.per_part < n ? begin + lines.per_part : n;
  for (int64_t row = blockIdx.x; row < lines.rows.count; row += gridDim.x) {
    const auto at = lines.rows.at(row);
    State carried = !kTotals && parts ? parts[row * lines.parts + part] : s.identity();
    for (int64_t first = begin; first < end; first += kTile) {
      // Through shared memory: threads read neighbours, and fold neighbours of their own.
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int t = k * kThreads + static_cast<int>(threadIdx.x);
        const int64_t i = first + t;
        tile[t] = i < end ? s.load(lines.array, at.v, S::kBackwards ? n - 1 - i : i, n) : s.identity();
      }
      __syncthreads();
      State mine[kEach], total = s.identity(), all;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        mine[k] = tile[threadIdx.x * kEach + k];
        total = s.join(total, mine[k]);
      }
      State before = s.join(carried, before_in_block(s, total, &all));
      carried = s.join(carried, all);
      if constexpr (!kTotals) {
        // The inclusive state of an element; its exclusive one is that of the one before.
        const State first_before = before;
#pragma unroll
        for (int k = 0; k < kEach; ++k) tile[threadIdx.x * kEach + k] = before = s.join(before, mine[k]);
        HOLON_SHARED(State, edges, kThreads);
        edges[threadIdx.x] = first_before;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kEach; ++k) {
          const int t = k * kThreads + static_cast<int>(threadIdx.x);
          const int64_t i = first + t;
          if (i < end)
            s.store(lines.array, at.v, S::kBackwards ? n - 1 - i : i, n, tile[t],
                    t % kEach ? tile[t - 1] : edges[t / kEach]);
        }
      }
    }
    if (kTotals && threadIdx.x == 0) parts[row * lines.parts + part] = carried;
  }
}

// From the parts' states to what comes before each.
template <class S>
__global__ void carry_parts(S s, int64_t rows, int64_t count, typename S::State* parts) {
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < rows; row += int64_t{gridDim.x} * kThreads) {
    typename S::State before = s.identity();
    for (int64_t p = 0; p < count; ++p) {
      const typename S::State here = parts[row * count + p];
      parts[row * count + p] = before;
      before = s.join(before, here);
    }
  }
}

// A thread for each row: rows are adjacent.
template <class S>
__global__ void __launch_bounds__(kThreads) scan_columns(S s, Lines<S::kArrays> lines) {
  const int64_t n = lines.length;
  for (int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x; row < lines.rows.count;
       row += int64_t{gridDim.x} * kThreads) {
    const auto at = lines.rows.at(row);
    typename S::State before = s.identity();
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = S::kBackwards ? n - 1 - j : j;
      const typename S::State here = s.join(before, s.load(lines.array, at.v, i, n));
      s.store(lines.array, at.v, i, n, here, before);
      before = here;
    }
  }
}

template <class S>
void run_scan(const S& s, const Array* const (&arrays)[S::kArrays], int axis) {
  if (arrays[0]->numel() == 0) return;
  const Lines<S::kArrays> lines(arrays, axis);
  // Short rows too: a block would be mostly idle.
  if (lines.columns || (lines.length <= 32 && lines.rows.count >= kThreads))
    return launch(scan_columns<S>, blocks_for(lines.rows.count, kThreads), kThreads, 0, s, lines);
  const auto rows = static_cast<unsigned>(std::min<int64_t>(lines.rows.count, int64_t{32} * multiprocessors()));
  if (lines.parts == 1) return launch(scan_rows<S, false>, rows, kThreads, 0, s, lines, nullptr);
  const Scratch room(static_cast<size_t>(lines.rows.count * lines.parts) * sizeof(typename S::State));
  auto* parts = room.data<typename S::State>();
  const dim3 grid(rows, static_cast<unsigned>(lines.parts));
  launch(scan_rows<S, true>, grid, kThreads, 0, s, lines, parts);
  launch(carry_parts<S>, blocks_for(lines.rows.count, kThreads), kThreads, 0, s, lines.rows.count, lines.parts, parts);
  launch(scan_rows<S, false>, grid, kThreads, 0, s, lines, parts);
}

// Sums or products, in double or int64.
template <class V, bool kProduct>
struct Cumulative {
  static constexpr int kArrays = 2;
  static constexpr bool kBackwards = false;
  using State = V;
  __device__ State identity() const { return kProduct ? V(1) : V(0); }
  __device__ __forceinline__ State join(State a, State b) const { return kProduct ? a * b : a + b; }
  __device__ __forceinline__ State load(const RowArray* a, const int64_t* at, int64_t i, int64_t) const {
    return load_any<V>(a[0].data, a[0].dtype, at[0] + i * a[0].step);
  }
  __device__ __forceinline__ void store(const RowArray* a, const int64_t* at, int64_t i, int64_t, State v,
                                        State) const {
    store_any(a[1].data, a[1].dtype, at[1] + i * a[1].step, v);
  }
};

template <bool kProduct>
void run_cumulative(const Array& a, int axis, Array& out) {
  HOLON_CHECK(a.shape == out.shape, "scan: the shapes {} and {} differ", a.shape, out.shape);
  use_device_of(out);
  if (is_floating(a.dtype))
    run_scan(Cumulative<double, kProduct>(), {&a, &out}, axis);
  else
    run_scan(Cumulative<int64_t, kProduct>(), {&a, &out}, axis);
}
void cumsum(const Array& a, int axis, Array& out) { run_cumulative<false>(a, axis, out); }
void cumprod(const Array& a, int axis, Array& out) { run_cumulative<true>(a, axis, out); }

__device__ __forceinline__ double load_double(const RowArray* a, const int64_t* at, int k, int64_t i) {
  return load_one<double>(a[k], at[k] + i * a[k].step);
}

struct LogSums {
  static constexpr int kArrays = 2;
  static constexpr bool kBackwards = false;
  using State = double;
  __device__ State identity() const { return lowest<double>(); }
  __device__ __forceinline__ State join(State a, State b) const {
    if (a != a || b != b) return a + b;
    const double high = a > b ? a : b, low = a > b ? b : a;
    return f::is_inf(high) ? high : high + f::log1p(f::exp(low - high));
  }
  __device__ __forceinline__ State load(const RowArray* a, const int64_t* at, int64_t i, int64_t) const {
    return load_double(a, at, 0, i);
  }
  __device__ __forceinline__ void store(const RowArray* a, const int64_t* at, int64_t i, int64_t, State v,
                                        State) const {
    store_one<double>(a[1], at[1] + i * a[1].step, v);
  }
};

// t -> factor t + term.
struct Step {
  double factor, term;
};
struct Recurrence {
  static constexpr bool kBackwards = true;
  using State = Step;
  __device__ State identity() const { return {1, 0}; }
  // A factor of 0 cuts off what was before, whatever it is; and no step at all must not make a NaN of an infinite
  // factor.
  __device__ __forceinline__ State join(const State& a, const State& b) const {
    if (b.factor == 0 || (a.factor == 1 && a.term == 0)) return b;
    return {a.factor * b.factor, b.factor * a.term + b.term};
  }
};

// t[i] = dy[i] + exp(y[i] - y[i + 1]) t[i + 1], dx[i] = exp(x[i] - y[i]) t[i].
struct LogSumsBackward : Recurrence {
  static constexpr int kArrays = 4;  // dy, x, y, dx
  __device__ __forceinline__ State load(const RowArray* a, const int64_t* at, int64_t i, int64_t n) const {
    const double y = load_double(a, at, 2, i);
    const bool starts = i + 1 == n || (f::is_inf(y) && y < 0);
    return {starts ? 0.0 : f::exp(y - load_double(a, at, 2, i + 1)), load_double(a, at, 0, i)};
  }
  __device__ __forceinline__ void store(const RowArray* a, const int64_t* at, int64_t i, int64_t, const State& v,
                                        const State&) const {
    const double y = load_double(a, at, 2, i);
    store_one<double>(a[3], at[3] + i * a[3].step,
                      f::is_inf(y) && y < 0 ? 0.0 : f::exp(load_double(a, at, 1, i) - y) * v.term);
  }
};

// The products of all elements before each.
struct ProductsBefore : Cumulative<double, true> {
  __device__ __forceinline__ void store(const RowArray* a, const int64_t* at, int64_t i, int64_t, State,
                                        State before) const {
    static_cast<double*>(a[1].data)[at[1] + i * a[1].step] = before;
  }
};

// s[i] = dy[i] + x[i + 1] s[i + 1], dx[i] = x[0] ... x[i - 1] s[i].
struct ProductsBackward : Recurrence {
  static constexpr int kArrays = 4;  // dy, x, the products before, dx
  __device__ __forceinline__ State load(const RowArray* a, const int64_t* at, int64_t i, int64_t n) const {
    return {i + 1 < n ? load_double(a, at, 1, i + 1) : 0.0, load_double(a, at, 0, i)};
  }
  __device__ __forceinline__ void store(const RowArray* a, const int64_t* at, int64_t i, int64_t, const State& v,
                                        const State&) const {
    store_one<double>(a[3], at[3] + i * a[3].step,
                      static_cast<const double*>(a[2].data)[at[2] + i * a[2].step] * v.term);
  }
};

void require_floating(const char* op, const Array& x) {
  if (!is_floating(x.dtype)) fail_type("{}: {} is not a floating-point type. Convert it first.", op, name(x.dtype));
}

void logcumsumexp(const Array& x, int axis, Array& out) {
  require_floating("logcumsumexp", x);
  use_device_of(out);
  run_scan(LogSums(), {&x, &out}, axis);
}
void logcumsumexp_backward(const Array& dy, const Array& x, const Array& y, int axis, Array& out) {
  require_floating("logcumsumexp", x);
  use_device_of(out);
  run_scan(LogSumsBackward(), {&dy, &x, &y, &out}, axis);
}
void cumprod_backward(const Array& dy, const Array& x, int axis, Array& out) {
  require_floating("cumprod", x);
  use_device_of(out);
  const Array before = Array::empty(x.shape, DType::kFloat64, x.device);
  run_scan(ProductsBefore(), {&x, &before}, axis);
  run_scan(ProductsBackward(), {&dy, &x, &before, &out}, axis);
}

template <class V>
struct Best {
  V value;
  int64_t index;  // -1: of none yet
};
template <class V>
struct Extremes {
  static constexpr int kArrays = 3;  // x, values, indices
  static constexpr bool kBackwards = false;
  using State = Best<V>;
  bool max;
  __device__ State identity() const { return {V(0), -1}; }
  __device__ __forceinline__ State join(const State& a, const State& b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    if (b.value != b.value) return b;
    return a.value == a.value && (max ? b.value >= a.value : b.value <= a.value) ? b : a;
  }
  __device__ __forceinline__ State load(const RowArray* a, const int64_t* at, int64_t i, int64_t) const {
    return {load_any<V>(a[0].data, a[0].dtype, at[0] + i * a[0].step), i};
  }
  __device__ __forceinline__ void store(const RowArray* a, const int64_t* at, int64_t i, int64_t, const State& v,
                                        const State&) const {
    store_any(a[1].data, a[1].dtype, at[1] + i * a[1].step, v.value);
    static_cast<int64_t*>(a[2].data)[at[2] + i * a[2].step] = v.index;
  }
};

void cumextremum(bool max, const Array& x, int axis, Array& values, Array& indices) {
  use_device_of(values);
  if (is_floating(x.dtype))
    run_scan(Extremes<double>{max}, {&x, &values, &indices}, axis);
  else
    run_scan(Extremes<int64_t>{max}, {&x, &values, &indices}, axis);
}

HOLON_DEVICE_KERNEL(cumsum, cumsum);
HOLON_DEVICE_KERNEL(cumprod, cumprod);
HOLON_DEVICE_KERNEL(logcumsumexp, logcumsumexp);
HOLON_DEVICE_KERNEL(logcumsumexp_backward, logcumsumexp_backward);
HOLON_DEVICE_KERNEL(cumprod_backward, cumprod_backward);
HOLON_DEVICE_KERNEL(cumextremum, cumextremum);

}  // namespace
}  // namespace holon::kernels::cuda
