// Convolutions of groups of few channels: a thread sums one element's window; gradients of weights are sums of parts.
#include <algorithm>

#include "holon/kernels/cuda/conv_direct.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/half.h"
#include "holon/kernels/reduce.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int64_t kMostPerGroup = 4;  // channels, of x and of y: beyond them products are worth their matrices
constexpr int64_t kSmall = int64_t{1} << 31, kMostSize = int64_t{1} << 24;

struct Direct {
  int c_per, o_per;  // channels of a group
  int in[3], kernel[3], out[3], stride[3], padding[3], dilation[3];
  int64_t x[5], w[5], y[5];  // strides
};

Direct direct_of(const Array& x_, const Array& w_, const Array& y_, const Conv2d& conv) {
  const Array x = with_depth(x_), w = with_depth(w_), y = with_depth(y_);
  Direct g;
  g.c_per = static_cast<int>(w.shape[1]);
  g.o_per = static_cast<int>(w.shape[0] / conv.groups);
  const int first = 5 - x_.ndim();
  for (int a = 0; a < 3; ++a) {
    const int from = a - first;
    g.in[a] = static_cast<int>(x.shape[2 + a]);
    g.kernel[a] = static_cast<int>(w.shape[2 + a]);
    g.out[a] = static_cast<int>(y.shape[2 + a]);
    g.stride[a] = from >= 0 ? static_cast<int>(conv.stride[from]) : 1;
    g.padding[a] = from >= 0 ? static_cast<int>(conv.padding[from]) : 0;
    g.dilation[a] = from >= 0 ? static_cast<int>(conv.dilation[from]) : 1;
  }
  for (int i = 0; i < 5; ++i) g.x[i] = x.strides[i], g.w[i] = w.strides[i], g.y[i] = y.strides[i];
  return g;
}

// The elements of [n, c, d, h, w] in the order of its memory: neighbouring threads take neighbouring channels where
// these are last.
struct Places {
  int64_t count;
  Axis c, axis[3];
  bool last, small;

  explicit Places(const Array& a)
      : count(a.numel()), c(a.shape[1]), last(a.strides[1] == 1 && a.shape[1] > 1), small(count < kSmall) {
    const Array five = with_depth(a);
    for (int i = 0; i < 3; ++i) axis[i] = Axis(five.shape[2 + i]);
  }
  // Returns n.
  HOLON_BOTH int64_t at(int64_t i, int* channel, int (&p)[3]) const {
    if (last) *channel = static_cast<int>(c.split(i, small));
    for (int a = 2; a >= 0; --a) p[a] = static_cast<int>(axis[a].split(i, small));
    if (!last) *channel = static_cast<int>(c.split(i, small));
    return i;
  }
};

__device__ __forceinline__ bool inside(int p, int size) {
  return static_cast<unsigned>(p) < static_cast<unsigned>(size);
}

// kH, kW: the kernel's sizes where they are known, else 0.
template <class T, int kH, int kW>
__global__ void forward(const T* x, const T* w, const T* bias, int64_t bias_stride, T* y, Direct g, Places places) {
  const int sizes[2] = {kH ? kH : g.kernel[1], kW ? kW : g.kernel[2]};
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < places.count; i += int64_t{kThreads} * gridDim.x) {
    int o, p[3];
    const int64_t n = places.at(i, &o, p);
    const T* from = x + n * g.x[0] + static_cast<int64_t>(o / g.o_per) * g.c_per * g.x[1];
    const T* weight = w + o * g.w[0];
    Compute<T> sum = bias ? widen(bias[o * bias_stride]) : Compute<T>(0);
    for (int c = 0; c < g.c_per; ++c, from += g.x[1], weight += g.w[1])
      for (int td = 0; td < g.kernel[0]; ++td) {
        const int d = p[0] * g.stride[0] - g.padding[0] + td * g.dilation[0];
        if (!inside(d, g.in[0])) continue;
#pragma unroll
        for (int th = 0; th < sizes[0]; ++th) {
          const int h = p[1] * g.stride[1] - g.padding[1] + th * g.dilation[1];
          if (!inside(h, g.in[1])) continue;
#pragma unroll
          for (int tw = 0; tw < sizes[1]; ++tw) {
            const int v = p[2] * g.stride[2] - g.padding[2] + tw * g.dilation[2];
            if (inside(v, g.in[2]))
              sum += widen(from[d * g.x[2] + h * g.x[3] + v * g.x[4]]) *
                  widen(weight[td * g.w[2] + th * g.w[3] + tw * g.w[4]]);
          }
        }
      }
    y[n * g.y[0] + o * g.y[1] + p[0] * g.y[2] + p[1] * g.y[3] + p[2] * g.y[4]] = narrow<T>(sum);
  }
}

// Which place of y has the place p of x at this element of its window: false, none.
__device__ __forceinline__ bool place_of(const Direct& g, int axis, int p, int tap, int* at) {
  const int t = p + g.padding[axis] - tap * g.dilation[axis];
  if (t < 0) return false;
  const int q = g.stride[axis] == 1 ? t : t / g.stride[axis];
  *at = q;
  return q < g.out[axis] && q * g.stride[axis] == t;
}

template <class T, int kH, int kW>
__global__ void backward_data(const T* dy, const T* w, T* dx, Direct g, Places places) {
  const int sizes[2] = {kH ? kH : g.kernel[1], kW ? kW : g.kernel[2]};
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < places.count; i += int64_t{kThreads} * gridDim.x) {
    int c, p[3];
    const int64_t n = places.at(i, &c, p);
    const int group = c / g.c_per;
    const T* from = dy + n * g.y[0] + static_cast<int64_t>(group) * g.o_per * g.y[1];
    const T* weight = w + static_cast<int64_t>(group) * g.o_per * g.w[0] + (c - group * g.c_per) * g.w[1];
    Compute<T> sum = 0;
    for (int o = 0; o < g.o_per; ++o, from += g.y[1], weight += g.w[0])
      for (int td = 0; td < g.kernel[0]; ++td) {
        int d, h, v;
        if (!place_of(g, 0, p[0], td, &d)) continue;
#pragma unroll
        for (int th = 0; th < sizes[0]; ++th) {
          if (!place_of(g, 1, p[1], th, &h)) continue;
#pragma unroll
          for (int tw = 0; tw < sizes[1]; ++tw)
            if (place_of(g, 2, p[2], tw, &v))
              sum += widen(from[d * g.y[2] + h * g.y[3] + v * g.y[4]]) *
                  widen(weight[td * g.w[2] + th * g.w[3] + tw * g.w[4]]);
        }
      }
    dx[n * g.x[0] + c * g.x[1] + p[0] * g.x[2] + p[1] * g.x[3] + p[2] * g.x[4]] = narrow<T>(sum);
  }
}

// Gradients of weights: each is a sum over all places of y. A pair is a channel of y with one of its group's of x. A
// block sums so many elements of the window at a time over a part of the places; the parts are added by another kernel,
// in their order.
constexpr int kTaps = 9;

struct Sums {
  int64_t places, per_part;  // places: images times places of y
  int pairs, taps, parts;
  Axis axis[3];
  bool small;
};

// kLast: the threads of a warp take neighbouring pairs, which read neighbouring channels, and the warps take places.
// Else all threads take places of one pair.
template <class T, bool kLast>
__global__ void weight_sums(const T* dy, const T* x, Compute<T>* sums, Direct g, Sums s) {
  using C = Compute<T>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t pair = kLast ? blockIdx.x * int64_t{kWarp} + lane : blockIdx.x;
  const int first_tap = blockIdx.z * kTaps;
  C sum[kTaps];
#pragma unroll
  for (int t = 0; t < kTaps; ++t) sum[t] = 0;
  if (pair < s.pairs) {
    const int o = static_cast<int>(pair) / g.c_per, c = o / g.o_per * g.c_per + static_cast<int>(pair) % g.c_per;
    int tap[kTaps][3];
#pragma unroll
    for (int t = 0; t < kTaps; ++t) {
      int rest = first_tap + t;
      for (int a = 2; a >= 0; --a) {
        tap[t][a] = rest % g.kernel[a] * g.dilation[a] - g.padding[a];
        rest /= g.kernel[a];
      }
      if (rest > 0) tap[t][0] = -(1 << 30);  // behind the last: nowhere
    }
    const int64_t begin = blockIdx.y * s.per_part, end = begin + s.per_part < s.places ? begin + s.per_part : s.places;
    const int64_t step = kLast ? kWarps : kThreads;
    for (int64_t i = begin + (kLast ? warp : static_cast<int>(threadIdx.x)); i < end; i += step) {
      int64_t n = i;
      int p[3];
      for (int a = 2; a >= 0; --a) p[a] = static_cast<int>(s.axis[a].split(n, s.small));
      const C up = widen(dy[n * g.y[0] + o * g.y[1] + p[0] * g.y[2] + p[1] * g.y[3] + p[2] * g.y[4]]);
      const T* from = x + n * g.x[0] + c * g.x[1];
      for (int a = 0; a < 3; ++a) p[a] *= g.stride[a];
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        const int d = p[0] + tap[t][0], h = p[1] + tap[t][1], v = p[2] + tap[t][2];
        if (inside(d, g.in[0]) && inside(h, g.in[1]) && inside(v, g.in[2]))
          sum[t] += up * widen(from[d * g.x[2] + h * g.x[3] + v * g.x[4]]);
      }
    }
  }
  HOLON_SHARED(C, of_threads, kWarps * kWarp);
#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    C all = sum[t];
    if constexpr (!kLast) all = warp_reduce(all, Add{});
    __syncthreads();  // they may still be read for the element before
    of_threads[warp * kWarp + lane] = all;
    __syncthreads();
    if (warp != 0 || pair >= s.pairs || first_tap + t >= s.taps || (!kLast && lane != 0)) continue;
    for (int k = 1; k < kWarps; ++k) all += of_threads[k * kWarp + lane];
    sums[(static_cast<int64_t>(blockIdx.y) * s.pairs + pair) * s.taps + first_tap + t] = all;
  }
}

template <class T>
__global__ void add_parts(const Compute<T>* sums, T* dw, Direct g, Sums s) {
  const int64_t count = int64_t{s.pairs} * s.taps;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x) {
    Compute<T> sum = sums[i];
    for (int part = 1; part < s.parts; ++part) sum += sums[part * count + i];
    const int64_t pair = i / s.taps;
    int64_t tap = i % s.taps, at = pair / g.c_per * g.w[0] + pair % g.c_per * g.w[1];
    for (int a = 2; a >= 0; --a) {
      at += tap % g.kernel[a] * g.w[2 + a];
      tap /= g.kernel[a];
    }
    dw[at] = narrow<T>(sum);
  }
}

template <class F>
void visit_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f(TypeTag<Float16>{});
    case DType::kBFloat16: return f(TypeTag<BFloat16>{});
    case DType::kFloat64: return f(TypeTag<double>{});
    default: return f(TypeTag<float>{});
  }
}

bool square(const Direct& g, int size) { return g.kernel[1] == size && g.kernel[2] == size; }
bool last(const Array& a) { return a.strides[1] == 1 && a.shape[1] > 1; }

}  // namespace

bool direct_fits(const Array& w, const Conv2d& conv, const Array& x, const Array& y) {
  if (conv.groups == 1 || w.shape[1] > kMostPerGroup || w.shape[0] / conv.groups > kMostPerGroup) return false;
  for (const Array* a : {&w, &x, &y})
    for (int64_t size : a->shape)
      if (size >= kMostSize) return false;
  for (int a = 0; a < 3; ++a)  // the places of a window are ints
    if (conv.stride[a] > 64 || conv.dilation[a] > 64 || conv.padding[a] >= kMostSize) return false;
  return w.shape[0] * w.shape[1] < kSmall;
}

void direct_forward(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& y) {
  const Direct g = direct_of(x, w, y, conv);
  const Places places(y);
  visit_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* kernel = square(g, 3) ? forward<T, 3, 3> : square(g, 5) ? forward<T, 5, 5> : forward<T, 0, 0>;
    launch(kernel, blocks_for(places.count, kThreads), kThreads, 0, x.data<T>(), w.data<T>(),
           bias ? bias->data<T>() : nullptr, bias ? bias->strides[0] : 0, y.data<T>(), g, places);
  });
}

void direct_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  const Direct g = direct_of(dx, w, dy, conv);
  const Places places(dx);
  visit_float(dx.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto* kernel = square(g, 3) ? backward_data<T, 3, 3>
        : square(g, 5)          ? backward_data<T, 5, 5>
                                : backward_data<T, 0, 0>;
    launch(kernel, blocks_for(places.count, kThreads), kThreads, 0, dy.data<T>(), w.data<T>(), dx.data<T>(), g, places);
  });
}

void direct_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias) {
  const Direct g = direct_of(x, dw, dy, conv);
  if (dbias) reduce(ReduceOp::Sum, dy, ~2u & ((1u << dy.ndim()) - 1), *dbias);
  const bool by_channel = last(x) && last(dy);
  Sums s;
  for (int a = 0; a < 3; ++a) s.axis[a] = Axis(g.out[a]);
  s.places = dy.shape[0] * g.out[0] * g.out[1] * g.out[2];
  s.small = s.places < kSmall;
  s.pairs = static_cast<int>(dw.shape[0] * dw.shape[1]);
  s.taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  // Parts follow from the sizes alone, so that sums do on every device.
  const int tiles = (s.taps + kTaps - 1) / kTaps, rows = by_channel ? (s.pairs + kWarp - 1) / kWarp : s.pairs;
  const int64_t wanted = s.places / (by_channel ? 64 * kWarps : 8 * kThreads);
  s.parts = static_cast<int>(std::clamp<int64_t>(wanted, 1, std::max<int64_t>(4096 / (int64_t{rows} * tiles), 1)));
  s.per_part = (s.places + s.parts - 1) / s.parts;
  visit_float(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = Compute<T>;
    const Scratch sums(static_cast<size_t>(int64_t{s.parts} * s.pairs * s.taps) * sizeof(C));
    launch(by_channel ? weight_sums<T, true> : weight_sums<T, false>,
           dim3(static_cast<unsigned>(rows), static_cast<unsigned>(s.parts), static_cast<unsigned>(tiles)), kThreads, 0,
           dy.data<T>(), x.data<T>(), sums.data<C>(), g, s);
    launch(add_parts<T>, blocks_for(int64_t{s.pairs} * s.taps, kThreads), kThreads, 0, sums.data<C>(), dw.data<T>(), g,
           s);
  });
}

}  // namespace holon::kernels::cuda
