// Convolutions on devices: by a library where there is one (conv_library.h), else as products of matrices of windows.
// The matrix has a row for each place of the output and a column for each element of its window, in the layout that
// lets neighbouring threads touch neighbours both in the activations and in it: planar, [c, window, n, place], or with
// channels last, [n, place, group, window, c / groups].
#include "holon/kernels/conv.h"

#include <algorithm>

#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/conv_direct.h"
#include "holon/kernels/cuda/conv_library.h"
#include "holon/kernels/cuda/gemm.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/gemm.h"
#include "holon/kernels/half.h"
#include "holon/kernels/tf32.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// The matrix of so many bytes at a time: images beyond it take another turn.
constexpr int64_t kMostBytes = int64_t{64} << 20;

// Two axes are three with a depth of 1. `images` at a time.
struct Geometry {
  int64_t images, c, o, groups, taps, places;
  int64_t in[3], kernel[3], out[3], stride[3], padding[3], dilation[3];
  Axis in_axis[3], kernel_axis[3], out_axis[3], c_axis, group_axis, image_axis;
  int64_t at[5];  // strides of the activations [n, c, d, h, w]

  int64_t inner() const { return c / groups * taps; }
};

// Where a window's element is in the activations; false: in the padding.
__device__ __forceinline__ bool place_in(const Geometry& g, int64_t n, int64_t c, const int64_t (&tap)[3],
                                         const int64_t (&out)[3], int64_t* at) {
  int64_t offset = n * g.at[0] + c * g.at[1];
  bool inside = true;
#pragma unroll
  for (int a = 0; a < 3; ++a) {
    const int64_t p = out[a] * g.stride[a] - g.padding[a] + tap[a] * g.dilation[a];
    inside &= p >= 0 && p < g.in[a];
    offset += p * g.at[2 + a];
  }
  *at = offset;
  return inside;
}

template <class T>
__global__ void windows_planar(const T* x, T* cols, Geometry g, int64_t row_size, bool small) {
  const int64_t rows = g.c * g.taps;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    int64_t c = row, tap[3];
    for (int a = 2; a >= 0; --a) tap[a] = c % g.kernel[a], c /= g.kernel[a];
    for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < row_size; i += int64_t{kThreads} * gridDim.x) {
      int64_t n = i, out[3], at;
#pragma unroll
      for (int a = 2; a >= 0; --a) out[a] = g.out_axis[a].split(n, small);
      cols[row * row_size + i] = place_in(g, n, c, tap, out, &at) ? x[at] : T{};
    }
  }
}

// T: one element, or several neighbouring channels as one; g.c counts T's.
template <class T>
__global__ void windows_last(const T* x, T* cols, Geometry g, int64_t count, bool small) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x) {
    int64_t n = i, tap[3], out[3], at;
    const int64_t c = g.c_axis.split(n, small);
#pragma unroll
    for (int a = 2; a >= 0; --a) tap[a] = g.kernel_axis[a].split(n, small);
    const int64_t group = g.group_axis.split(n, small);
#pragma unroll
    for (int a = 2; a >= 0; --a) out[a] = g.out_axis[a].split(n, small);
    cols[i] = place_in(g, n, group * g.c_axis.size + c, tap, out, &at) ? x[at] : T{};
  }
}

// Strides of a matrix of windows, by what its elements belong to.
struct Columns {
  int64_t image, group, place, tap, c;
};

// The transpose of windows_*: each element of x is the sum of what its copies hold, in a fixed order.
template <class C, class T, bool kLast>
__global__ void add_windows(const C* cols, T* x, Geometry g, Columns s, int64_t count, bool small) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x) {
    int64_t n = i, p[3], group = 0, c = 0;
    if constexpr (kLast) {
      c = g.c_axis.split(n, small);
      group = g.group_axis.split(n, small);
    }
#pragma unroll
    for (int a = 2; a >= 0; --a) p[a] = g.in_axis[a].split(n, small);
    if constexpr (!kLast) {
      c = g.c_axis.split(n, small);
      group = g.group_axis.split(n, small);
    }
    const C* from = cols + n * s.image + group * s.group + c * s.c;
    Compute<T> sum = 0;
    for (int64_t td = 0; td < g.kernel[0]; ++td) {
      int64_t od = p[0] + g.padding[0] - td * g.dilation[0];
      if (od < 0 || od % g.stride[0] != 0 || (od /= g.stride[0]) >= g.out[0]) continue;
      for (int64_t th = 0; th < g.kernel[1]; ++th) {
        int64_t oh = p[1] + g.padding[1] - th * g.dilation[1];
        if (oh < 0 || oh % g.stride[1] != 0 || (oh /= g.stride[1]) >= g.out[1]) continue;
        for (int64_t tw = 0; tw < g.kernel[2]; ++tw) {
          int64_t ow = p[2] + g.padding[2] - tw * g.dilation[2];
          if (ow < 0 || ow % g.stride[2] != 0 || (ow /= g.stride[2]) >= g.out[2]) continue;
          sum += static_cast<Compute<T>>(widen(from[((od * g.out[1] + oh) * g.out[2] + ow) * s.place +
                                                    ((td * g.kernel[1] + th) * g.kernel[2] + tw) * s.tap]));
        }
      }
    }
    x[n * g.at[0] + (group * g.c_axis.size + c) * g.at[1] + p[0] * g.at[2] + p[1] * g.at[3] + p[2] * g.at[4]] =
        narrow<T>(sum);
  }
}

Geometry geometry(const Array& x, const Array& w, const Array& y, const Conv2d& conv) {
  Geometry g{};
  const int n = x.ndim() - 2, first = 3 - n;
  g.c = x.shape[1], g.o = y.shape[1], g.groups = conv.groups;
  for (int a = 0; a < 3; ++a) {
    const int from = a - first;
    const bool there = from >= 0;
    g.in[a] = there ? x.shape[2 + from] : 1;
    g.kernel[a] = there ? w.shape[2 + from] : 1;
    g.out[a] = there ? y.shape[2 + from] : 1;
    g.stride[a] = there ? conv.stride[from] : 1;
    g.padding[a] = there ? conv.padding[from] : 0;
    g.dilation[a] = there ? conv.dilation[from] : 1;
    g.in_axis[a] = Axis(g.in[a]), g.kernel_axis[a] = Axis(g.kernel[a]), g.out_axis[a] = Axis(g.out[a]);
  }
  g.taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  g.places = g.out[0] * g.out[1] * g.out[2];
  g.c_axis = Axis(g.c / g.groups), g.group_axis = Axis(g.groups);
  return g;
}

// The windows are the activations themselves.
bool pointwise(const Geometry& g, const Conv2d& conv) {
  if (g.taps != 1) return false;
  for (int a = 0; a < 3; ++a)
    if (g.stride[a] != 1 || g.in[a] != g.out[a]) return false;
  for (int64_t p : conv.padding)
    if (p) return false;
  return true;
}

void set_strides(Geometry& g, const Array& x) {
  const Array five = with_depth(x);
  for (int i = 0; i < 5; ++i) g.at[i] = five.strides[i];
}

bool channels_last(const Array& x) { return x.strides[1] == 1 && x.shape[1] > 1; }

Array images_of(const Array& x, int64_t first, int64_t count) {
  Dims shape = x.shape;
  shape[0] = count;
  return x.view(shape, x.strides, first * x.strides[0]);
}

// [n, c, ...] as [n, groups, place, c / groups], where the strides allow it.
bool by_place(const Array& x, int64_t groups, Array* out) {
  Dims spatial, strides, joined;
  for (int i = 2; i < x.ndim(); ++i) spatial.push_back(x.shape[i]), strides.push_back(x.strides[i]);
  if (!view_strides(spatial, strides, {spatial.numel()}, &joined)) return false;
  const int64_t c = x.shape[1] / groups;
  *out = x.view({x.shape[0], groups, spatial.numel(), c}, {x.strides[0], c * x.strides[1], joined[0], x.strides[1]});
  return true;
}

Array with_channels_last(const Array& x) {
  Array y = Array::empty_strided(x.shape, channels_last_strides(x.shape), x.dtype, x.device);
  copy(x, y);
  return y;
}

// The same; the elements are copied where the strides do not allow it.
Array by_place(const Array& x, int64_t groups) {
  Array y;
  if (!by_place(x, groups, &y)) by_place(with_channels_last(x), groups, &y);
  return y;
}

// [n, groups, place, c] as [groups, n and place, c], likewise.
bool by_row(const Array& x, Array* out) {
  if (x.shape[0] != 1 && x.strides[0] != x.shape[2] * x.strides[2]) return false;
  *out = x.view({x.shape[1], x.shape[0] * x.shape[2], x.shape[3]}, {x.strides[1], x.strides[2], x.strides[3]});
  return true;
}

// The weight as [groups, o / groups, window], its elements in the order of a matrix of windows.
Array filters(const Array& w, int64_t groups, bool last) {
  const int64_t o = w.shape[0] / groups, inner = w.shape[0] ? w.numel() / w.shape[0] : 0;
  const Array in_order = last ? with_channels_last(w) : contiguous(w);
  return in_order.view({groups, o, inner}, {o * inner, inner, 1});
}

Columns strides_of(const Geometry& g, bool last) {
  const int64_t c = g.c / g.groups;
  if (last) return {g.places * g.groups * g.taps * c, g.taps * c, g.groups * g.taps * c, c, 1};
  return {g.places, c * g.taps * g.images * g.places, 1, g.images * g.places, g.taps * g.images * g.places};
}

// The matrix as [n, groups, place, window].
Array matrix_of(const Geometry& g, bool last, DType dtype, Device device) {
  const Columns s = strides_of(g, last);
  const Array all = Array::empty({g.images * g.places * g.c * g.taps}, dtype, device);
  return all.view({g.images, g.groups, g.places, g.inner()}, {s.image, s.group, s.place, last ? 1 : s.tap});
}

int64_t images_at_a_time(const Geometry& g, int64_t images, DType dtype) {
  const int64_t each = std::max<int64_t>(g.places * g.c * g.taps * static_cast<int64_t>(size_bytes(dtype)), 1);
  return std::clamp<int64_t>(kMostBytes / each, 1, std::max<int64_t>(images, 1));
}

constexpr int64_t kSmall = int64_t{1} << 31;

template <class T>
void run_last(Geometry g, const std::byte* x, std::byte* cols, int64_t item) {
  const int64_t times = static_cast<int64_t>(sizeof(T)) / item;
  g.c /= times;
  g.c_axis = Axis(g.c / g.groups);
  for (int i = 0; i < 5; ++i)
    if (i != 1) g.at[i] /= times;
  const int64_t count = g.images * g.places * g.c * g.taps;
  launch(windows_last<T>, blocks_for(count, kThreads), kThreads, 0, reinterpret_cast<const T*>(x),
         reinterpret_cast<T*>(cols), g, count, count < kSmall);
}

template <class T>
void run_planar(const Geometry& g, const std::byte* x, std::byte* cols) {
  const int64_t row = g.images * g.places, rows = g.c * g.taps;
  const dim3 grid(blocks_for(row, kThreads), static_cast<unsigned>(std::min<int64_t>(rows, 65535)));
  launch(windows_planar<T>, grid, kThreads, 0, reinterpret_cast<const T*>(x), reinterpret_cast<T*>(cols), g, row,
         row < kSmall);
}

struct alignas(16) Sixteen {
  uint64_t v[2];
};

// Fills the matrix with the windows of x. Pre: a floating dtype; all arrays have elements.
void gather(Geometry g, const Array& x, bool last, const Array& cols) {
  set_strides(g, x);
  const auto item = static_cast<int64_t>(size_bytes(x.dtype));
  if (last) {
    // The widest type that channels of a group, strides and addresses are multiples of.
    int64_t width = 16;
    auto divides = [&](int64_t bytes) { return bytes % width == 0; };
    while (width > item) {
      bool fits = g.at[1] == 1 && divides(g.c / g.groups * item) &&
          divides(static_cast<int64_t>(reinterpret_cast<uintptr_t>(x.bytes())));
      for (int i = 0; i < 5; ++i) fits &= i == 1 || divides(g.at[i] * item);
      if (fits) break;
      width /= 2;
    }
    switch (width) {
      case 2: return run_last<uint16_t>(g, x.bytes(), cols.bytes(), item);
      case 4: return run_last<uint32_t>(g, x.bytes(), cols.bytes(), item);
      case 8: return run_last<uint64_t>(g, x.bytes(), cols.bytes(), item);
      default: return run_last<Sixteen>(g, x.bytes(), cols.bytes(), item);
    }
  }
  switch (item) {
    case 2: return run_planar<uint16_t>(g, x.bytes(), cols.bytes());
    case 4: return run_planar<uint32_t>(g, x.bytes(), cols.bytes());
    default: return run_planar<uint64_t>(g, x.bytes(), cols.bytes());
  }
}

// dx = the sums of the matrix's elements that are its copies.
void scatter(Geometry g, const Array& cols, bool last, Array& dx) {
  set_strides(g, dx);
  const Columns s = strides_of(g, last);
  const int64_t count = dx.numel();
  auto run = [&]<class C, class T>(TypeTag<C>, TypeTag<T>) {
    launch(last ? add_windows<C, T, true> : add_windows<C, T, false>, blocks_for(count, kThreads), kThreads, 0,
           cols.data<C>(), dx.data<T>(), g, s, count, count < kSmall);
  };
  switch (dx.dtype) {
    case DType::kFloat16: return run(TypeTag<float>{}, TypeTag<Float16>{});
    case DType::kBFloat16: return run(TypeTag<float>{}, TypeTag<BFloat16>{});
    case DType::kFloat64: return run(TypeTag<double>{}, TypeTag<double>{});
    default: return run(TypeTag<float>{}, TypeTag<float>{});
  }
}

ProductOptions options_for(const Array& x) {
  ProductOptions o;
  o.tf32 = x.dtype == DType::kFloat32 && tf32_allowed(Tf32::kConvolutions);
  return o;
}

Array transposed(const Array& x) {
  Array y = x;
  const int n = x.ndim();
  std::swap(y.shape[n - 1], y.shape[n - 2]);
  std::swap(y.strides[n - 1], y.strides[n - 2]);
  return y;
}

Array expanded(const Array& bias, const Dims& shape) {
  Dims strides = Dims::filled(shape.size(), 0);
  strides[1] = bias.strides[0];
  return bias.view(shape, strides);
}

// out = bias + the windows of x times the filters.
void forward(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out) {
  Array seen;
  if (!by_place(out, conv.groups, &seen)) {
    Array y = Array::empty_strided(out.shape, channels_last_strides(out.shape), out.dtype, out.device);
    forward(x, w, bias, conv, y);
    return copy(y, out);
  }
  Geometry g = geometry(x, w, out, conv);
  const bool last = channels_last(x), direct = pointwise(g, conv);
  const Array weight = transposed(filters(w, conv.groups, last));
  ProductOptions o = options_for(x);
  if (bias && conv.groups == 1) o.bias = bias;
  if (bias && conv.groups != 1) {
    copy(expanded(*bias, out.shape), out);
    o.beta = 1;
  }
  auto multiply_into = [&](const Array& windows, int64_t first) {
    Array to = images_of(seen, first, windows.shape[0]);
    multiply(windows, weight, to, o);
  };
  if (direct) return multiply_into(by_place(x, conv.groups), 0);
  const int64_t images = x.shape[0], step = images_at_a_time(g, images, x.dtype);
  for (int64_t i = 0; i < images; i += step) {
    g.images = std::min(step, images - i);
    const Array cols = matrix_of(g, last, x.dtype, x.device);
    gather(g, images_of(x, i, g.images), last, cols);
    multiply_into(cols, i);
  }
}

void backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  Geometry g = geometry(dx, w, dy, conv);
  const bool last = channels_last(dx);
  const Array weight = filters(w, conv.groups, last), seen = by_place(dy, conv.groups);
  const ProductOptions o = options_for(dx);
  if (Array to; pointwise(g, conv) && by_place(dx, conv.groups, &to)) {
    multiply(seen, weight, to, o);
    return;
  }
  // Sums of many products are not rounded to two bytes on the way.
  const DType dtype = is_half(dx.dtype) ? DType::kFloat32 : dx.dtype;
  const int64_t images = dx.shape[0], step = images_at_a_time(g, images, dtype);
  for (int64_t i = 0; i < images; i += step) {
    g.images = std::min(step, images - i);
    Array cols = matrix_of(g, last, dtype, dx.device), to = images_of(dx, i, g.images);
    multiply(images_of(seen, i, g.images), weight, cols, o);
    scatter(g, cols, last, to);
  }
}

void backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias) {
  Geometry g = geometry(x, dw, dy, conv);
  Array rows;  // of dy, [groups, n and place, o / groups]
  Array places = by_place(dy, conv.groups);
  if (!by_row(places, &rows)) {
    places = by_place(with_channels_last(dy), conv.groups);
    by_row(places, &rows);
  }
  if (dbias) column_sums(rows.view({rows.shape[1], g.o}, {rows.strides[1], rows.strides[2]}), *dbias);
  const bool last = channels_last(x);
  ProductOptions o = options_for(x);
  const int64_t images = x.shape[0], outs = g.o / g.groups, inner = g.inner();
  const int64_t step = images_at_a_time(g, images, x.dtype);
  const Dims shape{g.groups, outs, inner};
  // In place where the elements' order is the weight's and no sum is rounded on the way.
  const bool in_place = dw.is_contiguous() && (!last || g.taps == 1) && (step >= images || !is_half(dw.dtype));
  Array sum = in_place ? dw.view(shape, contiguous_strides(shape))
                       : Array::empty(shape, is_half(dw.dtype) ? DType::kFloat32 : dw.dtype, dw.device);
  Array windows;
  if (Array seen; pointwise(g, conv) && by_place(x, conv.groups, &seen) && by_row(seen, &windows)) {
    multiply(transposed(rows), windows, sum, o);
  } else {
    for (int64_t i = 0; i < images; i += step) {
      g.images = std::min(step, images - i);
      const Array cols = matrix_of(g, last, x.dtype, x.device);
      gather(g, images_of(x, i, g.images), last, cols);
      by_row(cols, &windows);
      const Array part =
          rows.view({rows.shape[0], g.images * g.places, rows.shape[2]}, rows.strides, i * g.places * rows.strides[1]);
      o.beta = i > 0;
      multiply(transposed(part), windows, sum, o);
    }
  }
  if (in_place) return;
  // sum's elements, each where the weight has it.
  Dims strides = contiguous_strides(dw.shape);
  if (last) strides = channels_last_strides(dw.shape);
  copy(sum.view(dw.shape, strides), dw);
}

// The op takes no others.
void require_floating(const Array& x) { HOLON_CHECK(is_floating(x.dtype), "conv2d on a device: {}", name(x.dtype)); }

void conv2d(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out) {
  if (out.numel() == 0) return;
  use_device_of(out);
  if (x.numel() == 0 || w.numel() == 0) return bias ? copy(expanded(*bias, out.shape), out) : fill(out, 0);
  require_floating(x);
  if (library_conv(x, w, bias, conv, out)) return;
  if (direct_fits(w, conv, x, out)) return direct_forward(x, w, bias, conv, out);
  forward(x, w, bias, conv, out);
}

void conv2d_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  if (dx.numel() == 0) return;
  use_device_of(dx);
  if (dy.numel() == 0 || w.numel() == 0) return fill(dx, 0);
  require_floating(dx);
  if (library_conv_backward_data(dy, w, conv, dx)) return;
  if (direct_fits(w, conv, dx, dy)) return direct_backward_data(dy, w, conv, dx);
  backward_data(dy, w, conv, dx);
}

void conv2d_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias) {
  use_device_of(dw);
  if (dy.numel() == 0 || x.numel() == 0 || dw.numel() == 0) {
    if (dw.numel()) fill(dw, 0);
    if (dbias && dbias->numel()) fill(*dbias, 0);
    return;
  }
  require_floating(x);
  if (!dbias && library_conv_backward_weights(dy, x, conv, dw)) return;
  if (direct_fits(dw, conv, x, dy)) return direct_backward_weights(dy, x, conv, dw, dbias);
  backward_weights(dy, x, conv, dw, dbias);
}

HOLON_DEVICE_KERNEL(conv2d, conv2d);
HOLON_DEVICE_KERNEL(conv2d_backward_data, conv2d_backward_data);
HOLON_DEVICE_KERNEL(conv2d_backward_weights, conv2d_backward_weights);

}  // namespace
}  // namespace holon::kernels::cuda
