#include "holon/kernels/resize.h"

#include <algorithm>
#include <cstring>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/conv.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/rows.h"
#include "holon/kernels/device.h"
#include "holon/kernels/index.h"

namespace holon::kernels {

namespace {

constexpr int64_t kGrainElements = 32768;

// The array in row-major order and in the type that is computed in: itself, or a copy.
Array ready(const Array& x, DType compute) {
  if (x.dtype == compute) return contiguous(x);
  Array y = Array::empty(x.shape, compute, x.device);
  copy(x, y);
  return y;
}

// Runs f on out, or on a row-major block in the compute type that is then copied to it.
template <class F>
void into(Array& out, DType compute, F&& f) {
  if (out.dtype == compute && out.is_contiguous()) return f(out);
  Array y = Array::empty(out.shape, compute, out.device);
  f(y);
  copy(y, out);
}

// An array as [outer, n, inner] around an axis.
struct Around {
  int64_t outer = 1, inner = 1;
  Around(const Dims& shape, int axis) {
    for (int a = 0; a < shape.size(); ++a) (a < axis ? outer : inner) *= a == axis ? 1 : shape[a];
  }
};

template <class T>
void weigh(const T* x, int64_t n, const Taps& taps, T* out, int64_t m, int64_t inner) {
  const int k = taps.taps;
  const std::vector<T> weight(taps.weight.begin(), taps.weight.end());
  const int64_t* index = taps.index.data();
  const T* w = weight.data();
  if (inner == 1) {
    for (int64_t i = 0; i < m; ++i) {
      T sum = 0;
      for (int t = 0; t < k; ++t) sum += w[i * k + t] * x[index[i * k + t]];
      out[i] = sum;
    }
    return;
  }
  for (int64_t i = 0; i < m; ++i, out += inner) {
    const T *a = x + index[i * k] * inner, first = w[i * k];
    if (k == 2) {
      const T *b = x + index[i * k + 1] * inner, second = w[i * k + 1];
      for (int64_t j = 0; j < inner; ++j) out[j] = first * a[j] + second * b[j];
      continue;
    }
    for (int64_t j = 0; j < inner; ++j) out[j] = first * a[j];
    for (int t = 1; t < k; ++t) {
      const T *b = x + index[i * k + t] * inner, s = w[i * k + t];
      for (int64_t j = 0; j < inner; ++j) out[j] += s * b[j];
    }
  }
}

template <class T>
void weigh_backward(const T* dy, int64_t n, const Taps& taps, T* dx, int64_t m, int64_t inner) {
  const int k = taps.taps;
  std::fill_n(dx, n * inner, T{});
  for (int64_t i = 0; i < m; ++i, dy += inner)
    for (int t = 0; t < k; ++t) {
      T* to = dx + at_index(taps.index, i * k + t) * inner;
      const T w = static_cast<T>(at_index(taps.weight, i * k + t));
      for (int64_t j = 0; j < inner; ++j) to[j] += w * dy[j];
    }
}

Array index_array(const Taps& taps) {
  Array a = Array::empty({static_cast<int64_t>(taps.index.size())}, DType::kInt64);
  std::copy(taps.index.begin(), taps.index.end(), a.data<int64_t>());
  return a;
}

}  // namespace

void pad_constant(const Array& x, const Dims& before, Scalar value, Array& out) {
  fill(out, value);
  Dims shape = out.shape;
  int64_t from = 0, to = 0;
  for (int a = 0; a < x.ndim(); ++a) {
    const int64_t begin = std::max<int64_t>(before[a], 0), end = std::min(out.shape[a], before[a] + x.shape[a]);
    if (end <= begin) return;
    shape[a] = end - begin;
    from += (begin - before[a]) * x.strides[a];
    to += begin * out.strides[a];
  }
  Array window = out.view(shape, out.strides, to);
  copy(x.view(shape, x.strides, from), window);
}

void resample(const Array& x, int axis, const Taps& taps, Array& out) {
  HOLON_ON_DEVICE(out, resample, x, axis, taps, out);
  const int64_t m = out.shape[axis], n = x.shape[axis];
  HOLON_CHECK(static_cast<int64_t>(taps.index.size()) == m * taps.taps, "resample: {} taps for {} elements.",
              taps.index.size(), m);
  if (out.numel() == 0) return;
  if (taps.taps == 1) return index_select(x, axis, index_array(taps), out);
  const DType compute = float_compute(x.dtype, "resample");
  const Array in = ready(x, compute);
  const Around around(x.shape, axis);
  into(out, compute, [&](Array& y) {
    parallel_for(around.outer, std::max<int64_t>(1, kGrainElements / (m * around.inner)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t o = begin; o < end; ++o) {
                     const int64_t from = o * n * around.inner, to = o * m * around.inner;
                     if (compute == DType::kFloat64)
                       weigh(in.data<double>() + from, n, taps, y.data<double>() + to, m, around.inner);
                     else
                       weigh(in.data<float>() + from, n, taps, y.data<float>() + to, m, around.inner);
                   }
                 });
  });
}

void resample_backward(const Array& dy, int axis, const Taps& taps, Array& dx) {
  HOLON_ON_DEVICE(dx, resample_backward, dy, axis, taps, dx);
  const int64_t m = dy.shape[axis], n = dx.shape[axis];
  HOLON_CHECK(static_cast<int64_t>(taps.index.size()) == m * taps.taps, "resample: {} taps for {} elements.",
              taps.index.size(), m);
  if (dx.numel() == 0) return;
  const DType compute = float_compute(dx.dtype, "resample");
  if (taps.taps == 1) {
    // Sums of halves are added up in float32.
    into(dx, compute, [&](Array& y) {
      fill(y, Scalar(0));
      index_add(y, axis, index_array(taps), dy.dtype == compute ? dy : ready(dy, compute));
    });
    return;
  }
  const Array in = ready(dy, compute);
  const Around around(dx.shape, axis);
  into(dx, compute, [&](Array& y) {
    parallel_for(around.outer, std::max<int64_t>(1, kGrainElements / (n * around.inner)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t o = begin; o < end; ++o) {
                     const int64_t from = o * m * around.inner, to = o * n * around.inner;
                     if (compute == DType::kFloat64)
                       weigh_backward(in.data<double>() + from, n, taps, y.data<double>() + to, m, around.inner);
                     else
                       weigh_backward(in.data<float>() + from, n, taps, y.data<float>() + to, m, around.inner);
                   }
                 });
  });
}

namespace {

// f(row of columns, row of places, offset of its inputs or -1, first and last column inside) for one channel.
template <class F>
void over_places(const Window2d& w, int64_t h, int64_t width, int64_t oh, int64_t ow, F&& f) {
  int64_t row = 0;
  for (int64_t i = 0; i < w.kernel[0]; ++i)
    for (int64_t j = 0; j < w.kernel[1]; ++j, ++row) {
      const int64_t w0 = j * w.dilation[1] - w.padding[1], step = w.stride[1];
      const int64_t first = w0 < 0 ? std::min((-w0 + step - 1) / step, ow) : 0;
      const int64_t end = std::max(first, std::min(ow, width > w0 ? (width - w0 + step - 1) / step : 0));
      for (int64_t o = 0; o < oh; ++o) {
        const int64_t at = o * w.stride[0] - w.padding[0] + i * w.dilation[0];
        f(row, o, at * width + w0, first, at >= 0 && at < h ? end : first);
      }
    }
}

int64_t places(int64_t size, const Window2d& w, int a) {
  return conv_out_size(size, w.kernel[a], w.stride[a], w.padding[a], w.padding[a], w.dilation[a]);
}

// Both ways: f(plane, its columns, oh, ow) for every image and channel.
template <class T, class F>
void over_planes(const Array& x, const Array& columns, const Window2d& w, F&& f) {
  const int64_t h = x.shape[2], width = x.shape[3], oh = places(h, w, 0), ow = places(width, w, 1);
  HOLON_CHECK(columns.shape == (Dims{x.shape[0], x.shape[1] * w.kernel[0] * w.kernel[1], oh * ow}), "im2col: {} and {}",
              x.shape, columns.shape);
  const int64_t rows = w.kernel[0] * w.kernel[1];
  parallel_for(x.shape[0] * x.shape[1], std::max<int64_t>(1, kGrainElements / std::max<int64_t>(rows * oh * ow, 1)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p)
                   f(x.data<T>() + p * h * width, columns.data<T>() + p * rows * oh * ow, oh, ow);
               });
}

}  // namespace

void im2col(const Array& x, const Window2d& w, Array& out) {
  HOLON_ON_DEVICE(out, im2col, x, w, out);
  const Array in = contiguous(x);
  into(out, out.dtype, [&](Array& y) {
    visit_dtype(x.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      over_planes<T>(in, y, w, [&](const T* plane, T* columns, int64_t oh, int64_t ow) {
        over_places(w, x.shape[2], x.shape[3], oh, ow,
                    [&](int64_t row, int64_t o, int64_t from, int64_t first, int64_t end) {
                      T* to = columns + (row * oh + o) * ow;
                      for (int64_t q = 0; q < first; ++q) to[q] = T{};
                      for (int64_t q = first; q < end; ++q) to[q] = plane[from + q * w.stride[1]];
                      for (int64_t q = end; q < ow; ++q) to[q] = T{};
                    });
      });
    });
  });
}

void col2im(const Array& columns, const Window2d& w, Array& x) {
  HOLON_ON_DEVICE(x, col2im, columns, w, x);
  const DType compute = float_compute(x.dtype, "fold");
  const Array in = ready(columns, compute);
  auto run = [&](auto zero, Array& y) {
    using T = decltype(zero);
    std::memset(y.bytes(), 0, y.nbytes());
    over_planes<T>(y, in, w, [&](T* plane, const T* from, int64_t oh, int64_t ow) {
      over_places(w, x.shape[2], x.shape[3], oh, ow,
                  [&](int64_t row, int64_t o, int64_t to, int64_t first, int64_t end) {
                    const T* line = from + (row * oh + o) * ow;
                    for (int64_t q = first; q < end; ++q) plane[to + q * w.stride[1]] += line[q];
                  });
    });
  };
  into(x, compute, [&](Array& y) { compute == DType::kFloat64 ? run(double{}, y) : run(float{}, y); });
}

}  // namespace holon::kernels
