// Convolutions as products of im2col matrices, one image and group at a time. Two axes are three with a depth of 1.
#include <algorithm>
#include <cstring>

#include "holon/base/error.h"
#include "holon/kernels/conv.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/conv_shape.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/device.h"
#include "holon/kernels/gemm.h"

namespace holon::kernels {

namespace {

using detail::shape_of;
using detail::with_depth;
using Shape = detail::ConvShape;

Array one_image(const Array& x, int64_t image, int64_t first, int64_t count) {
  return x.view({count, x.shape[2], x.shape[3], x.shape[4]}, {x.strides[1], x.strides[2], x.strides[3], x.strides[4]},
                image * x.strides[0] + first * x.strides[1]);
}

// The array as a matrix of as many rows as its first axis, a view where the strides allow one.
Array as_matrix(const Array& x) {
  const Dims shape{x.shape[0], x.shape[0] ? x.numel() / x.shape[0] : 0};
  Dims strides;
  if (view_strides(x.shape, x.strides, shape, &strides)) return x.view(shape, strides);
  return contiguous(x).view(shape, {shape[1], 1});
}

Array weight_matrix(const Array& w, int64_t group, const Shape& s) {
  const int64_t o = s.o / s.groups;
  return as_matrix(
      w.view({o, s.c / s.groups, s.kernel[0], s.kernel[1], s.kernel[2]}, w.strides, group * o * w.strides[0]));
}

// f(row of the im2col matrix, row of outputs, channel, depth, height and what the first column would be of its inputs,
// first and last output column inside) for each (channel, place in the window, row of outputs).
template <class F>
void over_columns(const Shape& s, const Conv2d& conv, F&& f) {
  auto inside = [](int64_t at, int64_t size) { return at >= 0 && at < size; };
  int64_t row = 0;
  for (int64_t c = 0; c < s.c / s.groups; ++c)
    for (int64_t a = 0; a < s.kernel[0]; ++a)
      for (int64_t i = 0; i < s.kernel[1]; ++i)
        for (int64_t j = 0; j < s.kernel[2]; ++j, ++row) {
          // Columns whose input w0 + q * stride is in [0, w).
          const int64_t w0 = j * conv.dilation[2] - conv.padding[2], step = conv.stride[2], w = s.in[2], ow = s.out[2];
          const int64_t first = w0 < 0 ? std::min((-w0 + step - 1) / step, ow) : 0;
          const int64_t end = std::max(first, std::min(ow, w > w0 ? (w - w0 + step - 1) / step : 0));
          for (int64_t od = 0; od < s.out[0]; ++od)
            for (int64_t oh = 0; oh < s.out[1]; ++oh) {
              const int64_t d = od * conv.stride[0] - conv.padding[0] + a * conv.dilation[0];
              const int64_t h = oh * conv.stride[1] - conv.padding[1] + i * conv.dilation[1];
              f(row, od * s.out[1] + oh, c, d, h, w0, first, inside(d, s.in[0]) && inside(h, s.in[1]) ? end : first);
            }
        }
}

template <class T>
void im2col(const Array& x, const Shape& s, const Conv2d& conv, T* cols) {
  over_columns(s, conv,
               [&](int64_t row, int64_t out, int64_t c, int64_t d, int64_t h, int64_t w0, int64_t first, int64_t end) {
                 T* to = cols + row * s.places() + out * s.out[2];
                 const T* from =
                     x.data<T>() + c * x.strides[0] + d * x.strides[1] + h * x.strides[2] + w0 * x.strides[3];
                 const int64_t step = conv.stride[2] * x.strides[3];
                 for (int64_t q = 0; q < first; ++q) to[q] = T{};
                 if (step == 1)
                   std::copy(from + first, from + end, to + first);
                 else
                   for (int64_t q = first; q < end; ++q) to[q] = from[q * step];
                 for (int64_t q = end; q < s.out[2]; ++q) to[q] = T{};
               });
}

template <class T>
void add_columns(const T* cols, const Shape& s, const Conv2d& conv, Array& x) {
  using C = typename DTypeOf<T>::Compute;
  over_columns(s, conv,
               [&](int64_t row, int64_t out, int64_t c, int64_t d, int64_t h, int64_t w0, int64_t first, int64_t end) {
                 const T* from = cols + row * s.places() + out * s.out[2];
                 T* to = x.data<T>() + c * x.strides[0] + d * x.strides[1] + h * x.strides[2] + w0 * x.strides[3];
                 const int64_t step = conv.stride[2] * x.strides[3];
                 for (int64_t q = first; q < end; ++q)
                   to[q * step] =
                       static_cast<T>(static_cast<C>(static_cast<C>(to[q * step]) + static_cast<C>(from[q])));
               });
}

// A product of a half array is rounded once per image; sums over images are not the place to lose digits.
void refuse_half(DType dtype) {
  HOLON_CHECK(dtype != DType::kFloat16 && dtype != DType::kBFloat16, "{} goes through float32.", name(dtype));
}

}  // namespace

void conv2d_plain(const Array& x_, const Array& w_, const Array* bias, const Conv2d& conv_, Array& out_) {
  HOLON_ON_DEVICE(out_, conv2d_plain, x_, w_, bias, conv_, out_);
  refuse_half(x_.dtype);
  if (out_.numel() == 0) return;
  const Array x = with_depth(x_), w = with_depth(w_), out = with_depth(out_);
  const Conv2d conv = with_depth(conv_, x_.ndim());
  const Shape s = shape_of(x, w, out, conv);
  const int64_t o = s.o / s.groups;
  Array cols = Array::empty({s.inner(), s.places()}, x.dtype),
        result = Array::empty({o, s.out[0], s.out[1], s.out[2]}, x.dtype);
  for (int64_t group = 0; group < s.groups; ++group) {
    Array weight = weight_matrix(w, group, s);
    for (int64_t image = 0; image < s.n; ++image) {
      Array part = one_image(x, image, group * s.c / s.groups, s.c / s.groups);
      Array flat = result.view({o, s.places()}, {s.places(), 1});
      visit_dtype(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        im2col<T>(part, s, conv, cols.data<T>());
      });
      matmul(weight, cols, flat);
      if (bias)
        visit_dtype(x.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          using C = typename DTypeOf<T>::Compute;
          for (int64_t k = 0; k < o; ++k) {
            const C b = static_cast<C>(bias->data<T>()[(group * o + k) * bias->strides[0]]);
            T* row = flat.data<T>() + k * s.places();
            for (int64_t i = 0; i < s.places(); ++i)
              row[i] = static_cast<T>(static_cast<C>(static_cast<C>(row[i]) + b));
          }
        });
      Array target = one_image(out, image, group * o, o);
      copy(result, target);
    }
  }
}

void conv2d_backward_data_plain(const Array& dy_, const Array& w_, const Conv2d& conv_, Array& dx_) {
  HOLON_ON_DEVICE(dx_, conv2d_backward_data_plain, dy_, w_, conv_, dx_);
  refuse_half(dx_.dtype);
  if (dx_.numel() == 0) return;
  const Array dy = with_depth(dy_), w = with_depth(w_), dx = with_depth(dx_);
  const Conv2d conv = with_depth(conv_, dx_.ndim());
  const Shape s = shape_of(dx, w, dy, conv);
  const int64_t c = s.c / s.groups, o = s.o / s.groups;
  Array cols = Array::empty({s.inner(), s.places()}, dx.dtype),
        sum = Array::empty({c, s.in[0], s.in[1], s.in[2]}, dx.dtype);
  for (int64_t group = 0; group < s.groups; ++group) {
    Array weight = weight_matrix(w, group, s);
    weight = weight.view({s.inner(), o}, {weight.strides[1], weight.strides[0]});
    for (int64_t image = 0; image < s.n; ++image) {
      std::memset(sum.bytes(), 0, sum.nbytes());
      if (dy.numel() > 0) {
        matmul(weight, as_matrix(one_image(dy, image, group * o, o)), cols);
        visit_dtype(dx.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          add_columns<T>(cols.data<T>(), s, conv, sum);
        });
      }
      Array target = one_image(dx, image, group * c, c);
      copy(sum, target);
    }
  }
}

void conv2d_backward_weights_plain(const Array& dy_, const Array& x_, const Conv2d& conv_, Array& dw_, Array* dbias) {
  HOLON_ON_DEVICE(dw_, conv2d_backward_weights_plain, dy_, x_, conv_, dw_, dbias);
  refuse_half(x_.dtype);
  const Array dy = with_depth(dy_), x = with_depth(x_), dw = with_depth(dw_);
  const Conv2d conv = with_depth(conv_, x_.ndim());
  const Shape s = shape_of(x, dw, dy, conv);
  const int64_t o = s.o / s.groups;
  Array cols = Array::empty({s.inner(), s.places()}, x.dtype);
  Array columns = cols.view({s.places(), s.inner()}, {1, s.places()});
  Array sum = Array::empty({o, s.inner()}, x.dtype);
  for (int64_t group = 0; group < s.groups; ++group) {
    std::memset(sum.bytes(), 0, sum.nbytes());
    for (int64_t image = 0; image < s.n; ++image) {
      Array part = one_image(x, image, group * s.c / s.groups, s.c / s.groups);
      visit_dtype(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        im2col<T>(part, s, conv, cols.data<T>());
      });
      matmul(as_matrix(one_image(dy, image, group * o, o)), columns, sum, 1, 1);
    }
    const Dims shape{o, s.c / s.groups, s.kernel[0], s.kernel[1], s.kernel[2]};
    Array to = dw.view(shape, dw.strides, group * o * dw.strides[0]);
    copy(sum.view(shape, contiguous_strides(shape)), to);
  }
  if (!dbias) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    for (int64_t c = 0; c < s.o; ++c) {
      C total{};
      for (int64_t n = 0; n < s.n; ++n) {
        const Array part = contiguous(one_image(dy, n, c, 1));
        for (int64_t i = 0; i < s.places(); ++i) total = static_cast<C>(total + static_cast<C>(part.data<T>()[i]));
      }
      dbias->data<T>()[c * dbias->strides[0]] = static_cast<T>(total);
    }
  });
}

}  // namespace holon::kernels
