// Pooling: a thread for each element that is written. Gradients gather from the windows that hold an element, in the
// windows' order, so that they need no atomics and are the same every time.
#include "holon/kernels/pool.h"

#include "holon/base/error.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/planes.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpWindow =
    64;  // windows of so many places are averaged by a warp each, where columns are adjacent

// Where the maxima are: nowhere, as places in the windows (uint8), or in the planes (int64).
struct Index {
  void* data = nullptr;
  bool wide = false;
  Strides4 strides;
  explicit Index(const Array& a) : data(a.bytes()), wide(a.dtype == DType::kInt64), strides(a) {}
  Index(const Array* a, const Array& out) : strides(a ? *a : out) {
    if (a) *this = Index(*a);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_windows(const T* x, T* out, Index index, Order4 order, Strides4 from, Strides4 to, Windows rows, Windows cols) {
  using C = Compute<T>;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < order.count; i += int64_t{kThreads} * gridDim.x) {
    const auto p = order.at(i);
    const Span r = rows.span(p.h), s = cols.span(p.w);
    const T* plane = x + from.plane(p.n, p.c);
    int64_t best_i = 0, best_j = 0;
    T best_stored = plane[from.at(r.start, s.start)];
    C best = widen(best_stored);
    for (int64_t a = 0; a < r.count; ++a)
      for (int64_t b = 0; b < s.count; ++b) {
        const T stored = plane[from.at(r.start + a * rows.step, s.start + b * cols.step)];
        const C v = widen(stored);
        if (v > best || v != v) best = v, best_stored = stored, best_i = a, best_j = b;
      }
    out[to.plane(p.n, p.c) + to.at(p.h, p.w)] = best_stored;
    if (!index.data) continue;
    const int64_t at = index.strides.plane(p.n, p.c) + index.strides.at(p.h, p.w);
    if (index.wide)
      static_cast<int64_t*>(index.data)[at] = (r.start + best_i * rows.step) * cols.size + s.start + best_j * cols.step;
    else
      static_cast<uint8_t*>(index.data)[at] = static_cast<uint8_t>((r.first + best_i) * cols.kernel + s.first + best_j);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_windows_backward(const T* dy, Index index, T* dx, Order4 order, Strides4 from, Strides4 to, Windows rows,
                         Windows cols) {
  using C = Compute<T>;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < order.count; i += int64_t{kThreads} * gridDim.x) {
    const auto p = order.at(i);
    const int64_t row_end = rows.end(p.h), col_begin = cols.begin(p.w), col_end = cols.end(p.w),
                  in_plane = p.h * cols.size + p.w;
    const T* plane = dy + from.plane(p.n, p.c);
    const int64_t indices = index.strides.plane(p.n, p.c);
    C sum = 0;
    for (int64_t a = rows.begin(p.h); a < row_end; ++a) {
      const int64_t row_place = rows.place(p.h, a);
      if (row_place < 0) continue;
      for (int64_t b = col_begin; b < col_end; ++b) {
        const int64_t col_place = cols.place(p.w, b);
        if (col_place < 0) continue;
        const int64_t at = indices + index.strides.at(a, b);
        const bool here = index.wide
            ? static_cast<const int64_t*>(index.data)[at] == in_plane
            : static_cast<const uint8_t*>(index.data)[at] == row_place * cols.kernel + col_place;
        if (here) sum += widen(plane[from.at(a, b)]);
      }
    }
    dx[to.plane(p.n, p.c) + to.at(p.h, p.w)] = narrow<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    average_windows(const T* x, T* out, Order4 order, Strides4 from, Strides4 to, Windows rows, Windows cols) {
  using C = Compute<T>;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < order.count; i += int64_t{kThreads} * gridDim.x) {
    const auto p = order.at(i);
    const Span r = rows.span(p.h), s = cols.span(p.w);
    const T* first = x + from.plane(p.n, p.c) + from.at(r.start, s.start);
    C sum = 0;
    for (int64_t a = 0; a < r.count; ++a)
      for (int64_t b = 0; b < s.count; ++b) sum += widen(first[from.at(a, b)]);
    out[to.plane(p.n, p.c) + to.at(p.h, p.w)] = narrow<T>(sum / static_cast<C>(r.divisor * s.divisor));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    average_large_windows(const T* x, T* out, Order4 order, Strides4 from, Strides4 to, Windows rows, Windows cols) {
  using C = Compute<T>;
  const int lane = threadIdx.x % kWarp;
  const int64_t warps = int64_t{kThreads / kWarp} * gridDim.x;
  for (int64_t i = blockIdx.x * int64_t{kThreads / kWarp} + threadIdx.x / kWarp; i < order.count; i += warps) {
    const auto p = order.at(i);
    const Span r = rows.span(p.h), s = cols.span(p.w);
    const T* first = x + from.plane(p.n, p.c) + from.at(r.start, s.start);
    C sum = 0;
    const auto n = static_cast<uint32_t>(r.count * s.count), width = static_cast<uint32_t>(s.count);
    for (uint32_t k = lane; k < n; k += kWarp) sum += widen(first[from.at(k / width, k % width)]);
    sum = warp_reduce(sum, Add());
    if (lane == 0) out[to.plane(p.n, p.c) + to.at(p.h, p.w)] = narrow<T>(sum / static_cast<C>(r.divisor * s.divisor));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    average_windows_backward(const T* dy, T* dx, Order4 order, Strides4 from, Strides4 to, Windows rows, Windows cols) {
  using C = Compute<T>;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < order.count; i += int64_t{kThreads} * gridDim.x) {
    const auto p = order.at(i);
    const int64_t row_end = rows.end(p.h), col_begin = cols.begin(p.w), col_end = cols.end(p.w);
    const T* plane = dy + from.plane(p.n, p.c);
    C sum = 0;
    for (int64_t a = rows.begin(p.h); a < row_end; ++a) {
      const int64_t by = rows.span(a).divisor;
      for (int64_t b = col_begin; b < col_end; ++b)
        sum += widen(plane[from.at(a, b)]) / static_cast<C>(by * cols.span(b).divisor);
    }
    dx[to.plane(p.n, p.c) + to.at(p.h, p.w)] = narrow<T>(sum);
  }
}

// ---- on the host ----

struct Plan {
  Windows rows, cols;
};

Plan make_plan(const Array& x, const Array& out, const Pool2d* pool) {
  HOLON_CHECK(x.ndim() == 4 && out.ndim() == 4 && x.shape[0] == out.shape[0] && x.shape[1] == out.shape[1] &&
                  x.dtype == out.dtype,
              "pooling from {} {} to {} {}.", name(x.dtype), x.shape, name(out.dtype), out.shape);
  if (!pool) return {{x.shape[2], out.shape[2]}, {x.shape[3], out.shape[3]}};
  for (int a = 0; a < 2; ++a)
    HOLON_CHECK(pool->kernel[a] >= 1 && pool->dilation[a] >= 1 && pool->stride[a] >= 1,
                "pooling with kernel {}, stride {}, dilation {}.", pool->kernel[a], pool->stride[a], pool->dilation[a]);
  return {{*pool, 0, x.shape[2], out.shape[2]}, {*pool, 1, x.shape[3], out.shape[3]}};
}

void check_index(const Array& index, const Array& out, const Pool2d& pool) {
  HOLON_CHECK(index.shape == out.shape &&
                  (index.dtype == DType::kInt64 ||
                   (index.dtype == DType::kUInt8 && pool.kernel[0] * pool.kernel[1] <= 256)),
              "pooling: an index of {} {} does not fit the output {} and the window {} x {}.", name(index.dtype),
              index.shape, out.shape, pool.kernel[0], pool.kernel[1]);
}

template <class F>
void visit_average(DType dtype, F&& f) {
  visit_dtype(dtype, [&](auto tag) {
    if constexpr (std::is_floating_point_v<Compute<typename decltype(tag)::type>>)
      f(tag);
    else
      fail_type("average pooling of {} is not defined; convert to float32 first.", name(dtype));
  });
}

void run_max(const Plan& p, const Array& x, Array& out, const Array* index) {
  use_device_of(out);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(max_windows<T>, blocks_for(out.numel(), kThreads), kThreads, 0, x.data<T>(), out.data<T>(),
           Index(index, out), Order4(out), Strides4(x), Strides4(out), p.rows, p.cols);
  });
}

void max_pool2d(const Array& x, const Pool2d& pool, Array& out, Array* index) {
  const Plan p = make_plan(x, out, &pool);
  if (index) check_index(*index, out, pool);
  if (out.numel() == 0) return;
  for (const Windows* w : {&p.rows, &p.cols})
    for (int64_t o = 0; o < w->out; ++o)
      HOLON_CHECK(w->span(o).count > 0, "max_pool2d: a window of {} x {} is wholly in the padding of {}.",
                  pool.kernel[0], pool.kernel[1], x.shape);
  run_max(p, x, out, index);
}

void adaptive_max_pool2d(const Array& x, Array& out, Array& index) {
  const Plan p = make_plan(x, out, nullptr);
  HOLON_CHECK(index.shape == out.shape && index.dtype == DType::kInt64, "adaptive_max_pool2d: an index of {} {}.",
              name(index.dtype), index.shape);
  if (out.numel() > 0) run_max(p, x, out, &index);
}

// Whether the axis' output is what the pool makes of its input. The windows of an int64 index are adaptive ones where
// it is not.
bool fits(const Pool2d& p, int axis, int64_t size, int64_t out) {
  const int64_t k = p.kernel[axis], s = p.stride[axis], before = p.padding[axis], after = p.padding[axis + 2],
                step = p.dilation[axis];
  if (size + before + after < step * (k - 1) + 1) return false;
  return out == pool_out_size(size, k, s, before, after, step, false) ||
      out == pool_out_size(size, k, s, before, after, step, true);
}

void max_pool2d_backward(const Array& dy, const Array& index, const Pool2d& pool, Array& dx) {
  Plan p = make_plan(dx, dy, &pool);
  check_index(index, dy, pool);
  if (dx.numel() == 0) return;
  if (index.dtype == DType::kInt64) {
    if (!fits(pool, 0, dx.shape[2], dy.shape[2])) p.rows = Windows(dx.shape[2], dy.shape[2]);
    if (!fits(pool, 1, dx.shape[3], dy.shape[3])) p.cols = Windows(dx.shape[3], dy.shape[3]);
  }
  use_device_of(dx);
  visit_dtype(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(max_windows_backward<T>, blocks_for(dx.numel(), kThreads), kThreads, 0, dy.data<T>(), Index(index),
           dx.data<T>(), Order4(dx), Strides4(dy), Strides4(dx), p.rows, p.cols);
  });
}

void average(const Plan& p, const Array& x, Array& out) {
  if (out.numel() == 0) return;
  use_device_of(out);
  visit_average(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto run = [&](auto kernel, int64_t per_block) {
      launch(kernel, blocks_for(out.numel(), per_block), kThreads, 0, x.data<T>(), out.data<T>(), Order4(out),
             Strides4(x), Strides4(out), p.rows, p.cols);
    };
    auto places = [](const Windows& w) { return w.adaptive ? w.size / w.out : w.kernel; };
    const int64_t area = places(p.rows) * places(p.cols);
    const bool large = area >= kWarpWindow && area < (int64_t{1} << 30) && x.strides[3] == 1 && places(p.cols) > 1;
    large ? run(average_large_windows<T>, kThreads / kWarp) : run(average_windows<T>, kThreads);
  });
}

void average_backward(const Plan& p, const Array& dy, Array& dx) {
  if (dx.numel() == 0) return;
  use_device_of(dx);
  visit_average(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(average_windows_backward<T>, blocks_for(dx.numel(), kThreads), kThreads, 0, dy.data<T>(), dx.data<T>(),
           Order4(dx), Strides4(dy), Strides4(dx), p.rows, p.cols);
  });
}

void avg_pool2d(const Array& x, const Pool2d& pool, Array& out) {
  HOLON_CHECK(pool.dilation[0] == 1 && pool.dilation[1] == 1, "avg_pool2d has no dilation.");
  average(make_plan(x, out, &pool), x, out);
}
void avg_pool2d_backward(const Array& dy, const Pool2d& pool, Array& dx) {
  HOLON_CHECK(pool.dilation[0] == 1 && pool.dilation[1] == 1, "avg_pool2d has no dilation.");
  average_backward(make_plan(dx, dy, &pool), dy, dx);
}
void adaptive_avg_pool2d(const Array& x, Array& out) { average(make_plan(x, out, nullptr), x, out); }
void adaptive_avg_pool2d_backward(const Array& dy, Array& dx) { average_backward(make_plan(dx, dy, nullptr), dy, dx); }

HOLON_DEVICE_KERNEL(max_pool2d, max_pool2d);
HOLON_DEVICE_KERNEL(max_pool2d_backward, max_pool2d_backward);
HOLON_DEVICE_KERNEL(avg_pool2d, avg_pool2d);
HOLON_DEVICE_KERNEL(avg_pool2d_backward, avg_pool2d_backward);
HOLON_DEVICE_KERNEL(adaptive_avg_pool2d, adaptive_avg_pool2d);
HOLON_DEVICE_KERNEL(adaptive_avg_pool2d_backward, adaptive_avg_pool2d_backward);
HOLON_DEVICE_KERNEL(adaptive_max_pool2d, adaptive_max_pool2d);

}  // namespace
}  // namespace holon::kernels::cuda
