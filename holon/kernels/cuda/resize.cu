// Resampling along an axis, and windows as columns. Gradients gather, so that they are the same every time.
#include "holon/kernels/resize.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/kernels/conv.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/planes.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kWords = 960, kMostLaunches = 16;

// Numbers of the host that a kernel reads. Small tables travel as kernel parameters: nobody waits, and a recorded graph
// has its own copy.
struct Words {
  uint32_t count;
  uint32_t w[kWords];
};
__global__ void store_words(Words words, uint32_t* to) {
  for (uint32_t i = threadIdx.x; i < words.count; i += kThreads) to[i] = words.w[i];
}
template <class T>
Scratch on_device(const std::vector<T>& table) {
  static_assert(sizeof(T) % 4 == 0);
  const size_t n = table.size() * sizeof(T) / 4;
  Scratch there(n * 4);
  if (n > kWords * kMostLaunches) {
    device_runtime()->copy_from_host(device_index(), there.data<std::byte>(), table.data(), n * 4);
    return there;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(table.data());
  for (size_t at = 0; at < n; at += kWords) {
    Words words;
    words.count = static_cast<uint32_t>(std::min(kWords, n - at));
    std::memcpy(words.w, bytes + at * 4, words.count * 4);
    launch(store_words, 1, kThreads, 0, words, there.data<uint32_t>() + at);
  }
  return there;
}

// An array as [outer, n, inner] around an axis.
struct Around {
  int64_t count, n, inner;
  bool small;
  Divider by_n, by_inner;

  Around(const Dims& shape, int axis)
      : count(shape.numel()), n(shape[axis]), inner(1), small(count < (int64_t{1} << 31)) {
    for (int a = axis + 1; a < shape.size(); ++a) inner *= shape[a];
    if (small && count > 0) by_n = Divider(static_cast<uint32_t>(n)), by_inner = Divider(static_cast<uint32_t>(inner));
  }
  struct At {
    int64_t outer, i, inner;
  };
  HOLON_BOTH At at(int64_t k) const {
    At p;
    const int64_t row = small ? static_cast<int64_t>(by_inner.quotient(static_cast<uint32_t>(k))) : k / inner;
    p.inner = k - row * inner;
    p.outer = small ? static_cast<int64_t>(by_n.quotient(static_cast<uint32_t>(row))) : row / n;
    p.i = row - p.outer * n;
    return p;
  }
};

// Element i of the axis is the sum of what its entries [begin, end) name.
struct EvenTaps {
  int taps;
  HOLON_BOTH int64_t begin(int64_t i) const { return i * taps; }
  HOLON_BOTH int64_t end(int64_t i) const { return (i + 1) * taps; }
};
struct UnevenTaps {
  const int64_t* starts;
  HOLON_BOTH int64_t begin(int64_t i) const { return starts[i]; }
  HOLON_BOTH int64_t end(int64_t i) const { return starts[i + 1]; }
};

template <class T>
__global__ void __launch_bounds__(kThreads) pick(const T* x, int64_t n, const int64_t* index, T* out, Around around) {
  for (int64_t k = blockIdx.x * int64_t{kThreads} + threadIdx.x; k < around.count; k += int64_t{kThreads} * gridDim.x) {
    const auto p = around.at(k);
    out[k] = x[(p.outer * n + index[p.i]) * around.inner + p.inner];
  }
}

// weight may be null: all are 1.
template <class T, class Entries>
__global__ void __launch_bounds__(kThreads) weigh(const T* x, int64_t n, Entries entries, const int64_t* index,
                                                  const Compute<T>* weight, T* out, Around around) {
  for (int64_t k = blockIdx.x * int64_t{kThreads} + threadIdx.x; k < around.count; k += int64_t{kThreads} * gridDim.x) {
    const auto p = around.at(k);
    const T* from = x + p.outer * n * around.inner + p.inner;
    const int64_t end = entries.end(p.i);
    Compute<T> sum = 0;
    for (int64_t e = entries.begin(p.i); e < end; ++e)
      sum += (weight ? weight[e] : Compute<T>(1)) * widen(from[index[e] * around.inner]);
    out[k] = narrow<T>(sum);
  }
}

// Runs f on out, or on a row-major array that is then copied to it.
template <class F>
void into(Array& out, F&& f) {
  if (out.is_contiguous()) return f(out);
  Array y = Array::empty(out.shape, out.dtype, out.device);
  f(y);
  copy(y, out);
}

template <class F>
void visit_width(DType dtype, F&& f) {
  switch (size_bytes(dtype)) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    default: return f(uint64_t{});
  }
}
template <class F>
void visit_floating(DType dtype, const char* op, F&& f) {
  visit_dtype(dtype, [&](auto tag) {
    if constexpr (std::is_floating_point_v<Compute<typename decltype(tag)::type>>)
      f(tag);
    else
      fail_type("{} of {} is not defined; convert to float32 first.", op, name(dtype));
  });
}

void check_taps(const Taps& taps, int64_t m) {
  HOLON_CHECK(static_cast<int64_t>(taps.index.size()) == m * taps.taps, "resample: {} taps for {} elements.",
              taps.index.size(), m);
}

void resample(const Array& x, int axis, const Taps& taps, Array& out) {
  check_taps(taps, out.shape[axis]);
  if (out.numel() == 0) return;
  use_device_of(out);
  const Array in = contiguous(x);
  const Scratch index = on_device(taps.index);
  into(out, [&](Array& y) {
    const Around around(y.shape, axis);
    const unsigned blocks = blocks_for(around.count, kThreads);
    if (taps.taps == 1)
      return visit_width(x.dtype, [&](auto zero) {
        using T = decltype(zero);
        launch(pick<T>, blocks, kThreads, 0, in.data<T>(), in.shape[axis], index.data<int64_t>(), y.data<T>(), around);
      });
    visit_floating(x.dtype, "resample", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const Scratch weight = on_device(std::vector<Compute<T>>(taps.weight.begin(), taps.weight.end()));
      launch(weigh<T, EvenTaps>, blocks, kThreads, 0, in.data<T>(), in.shape[axis], EvenTaps{taps.taps},
             index.data<int64_t>(), weight.data<Compute<T>>(), y.data<T>(), around);
    });
  });
}

void resample_backward(const Array& dy, int axis, const Taps& taps, Array& dx) {
  check_taps(taps, dy.shape[axis]);
  if (dx.numel() == 0) return;
  // The taps of each element of dx instead of dy.
  const auto n = static_cast<size_t>(dx.shape[axis]);
  std::vector<int64_t> starts(n + 1), index(taps.index.size());
  for (int64_t i : taps.index) {
    HOLON_CHECK(i >= 0 && static_cast<size_t>(i) < n, "resample: a tap at {} of {}.", i, n);
    ++starts[static_cast<size_t>(i) + 1];
  }
  for (size_t i = 0; i < n; ++i) starts[i + 1] += starts[i];
  std::vector<double> weights(taps.weight.size());
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  for (size_t k = 0; k < taps.index.size(); ++k) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(taps.index[k])]++);
    index[at] = static_cast<int64_t>(k) / taps.taps;
    if (!weights.empty()) weights[at] = taps.weight[k];
  }
  use_device_of(dx);
  const Array in = contiguous(dy);
  const Scratch start = on_device(starts), of = on_device(index);
  into(dx, [&](Array& y) {
    const Around around(y.shape, axis);
    visit_floating(y.dtype, "resample", [&](auto tag) {
      using T = typename decltype(tag)::type;
      const Scratch weight = on_device(std::vector<Compute<T>>(weights.begin(), weights.end()));
      launch(weigh<T, UnevenTaps>, blocks_for(around.count, kThreads), kThreads, 0, in.data<T>(), in.shape[axis],
             UnevenTaps{start.data<int64_t>()}, of.data<int64_t>(),
             weights.empty() ? nullptr : weight.data<Compute<T>>(), y.data<T>(), around);
    });
  });
}

struct Columns {
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t h, w, oh, ow, c;
};

Columns columns_of(const Array& x, const Array& columns, const Window2d& w) {
  Columns k;
  for (int a = 0; a < 2; ++a)
    k.kernel[a] = w.kernel[a], k.stride[a] = w.stride[a], k.padding[a] = w.padding[a], k.dilation[a] = w.dilation[a];
  k.c = x.shape[1], k.h = x.shape[2], k.w = x.shape[3];
  k.oh = conv_out_size(k.h, w.kernel[0], w.stride[0], w.padding[0], w.padding[0], w.dilation[0]);
  k.ow = conv_out_size(k.w, w.kernel[1], w.stride[1], w.padding[1], w.padding[1], w.dilation[1]);
  HOLON_CHECK(columns.shape == (Dims{x.shape[0], x.shape[1] * w.kernel[0] * w.kernel[1], k.oh * k.ow}),
              "im2col: {} and {}", x.shape, columns.shape);
  return k;
}

// order: of out seen as [n, c, kh kw, places].
template <class T>
__global__ void __launch_bounds__(kThreads) to_columns(const T* x, Strides4 from, T* out, Order4 order, Columns k) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < order.count; i += int64_t{kThreads} * gridDim.x) {
    const auto p = order.at(i);
    const auto tap = static_cast<uint32_t>(p.h), width = static_cast<uint32_t>(k.kernel[1]);
    const int64_t oh = p.w / k.ow, ow = p.w - oh * k.ow;
    const int64_t row = oh * k.stride[0] - k.padding[0] + tap / width * k.dilation[0],
                  col = ow * k.stride[1] - k.padding[1] + tap % width * k.dilation[1];
    const bool inside = row >= 0 && row < k.h && col >= 0 && col < k.w;
    out[i] = inside ? x[from.plane(p.n, p.c) + from.at(row, col)] : T(0);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    from_columns(const T* columns, int64_t image_stride, int64_t row_stride, int64_t place_stride, T* x, Strides4 to,
                 Order4 order, Columns k) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < order.count; i += int64_t{kThreads} * gridDim.x) {
    const auto p = order.at(i);
    Compute<T> sum = 0;
    for (int64_t a = 0; a < k.kernel[0]; ++a) {
      const int64_t row = p.h + k.padding[0] - a * k.dilation[0], oh = row / k.stride[0];
      if (row < 0 || oh >= k.oh || oh * k.stride[0] != row) continue;
      for (int64_t b = 0; b < k.kernel[1]; ++b) {
        const int64_t col = p.w + k.padding[1] - b * k.dilation[1], ow = col / k.stride[1];
        if (col < 0 || ow >= k.ow || ow * k.stride[1] != col) continue;
        sum += widen(columns[p.n * image_stride + ((p.c * k.kernel[0] + a) * k.kernel[1] + b) * row_stride +
                             (oh * k.ow + ow) * place_stride]);
      }
    }
    x[to.plane(p.n, p.c) + to.at(p.h, p.w)] = narrow<T>(sum);
  }
}

void im2col(const Array& x, const Window2d& w, Array& out) {
  const Columns k = columns_of(x, out, w);
  if (out.numel() == 0) return;
  use_device_of(out);
  into(out, [&](Array& y) {
    const Dims shape{x.shape[0], k.c, k.kernel[0] * k.kernel[1], k.oh * k.ow};
    visit_width(x.dtype, [&](auto zero) {
      using T = decltype(zero);
      launch(to_columns<T>, blocks_for(y.numel(), kThreads), kThreads, 0, x.data<T>(), Strides4(x), y.data<T>(),
             Order4(shape, false), k);
    });
  });
}

void col2im(const Array& columns, const Window2d& w, Array& x) {
  const Columns k = columns_of(x, columns, w);
  if (x.numel() == 0) return;
  use_device_of(x);
  visit_floating(x.dtype, "fold", [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(from_columns<T>, blocks_for(x.numel(), kThreads), kThreads, 0, columns.data<T>(), columns.strides[0],
           columns.strides[1], columns.strides[2], x.data<T>(), Strides4(x), Order4(x), k);
  });
}

HOLON_DEVICE_KERNEL(resample, resample);
HOLON_DEVICE_KERNEL(resample_backward, resample_backward);
HOLON_DEVICE_KERNEL(im2col, im2col);
HOLON_DEVICE_KERNEL(col2im, col2im);

}  // namespace
}  // namespace holon::kernels::cuda
