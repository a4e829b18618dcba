// Convolutions as products of im2col matrices, one image and group at a time.
#include <cstring>

#include "holon/base/error.h"
#include "holon/kernels/cpu/conv.h"
#include "holon/kernels/cpu/gemm.h"
#include "holon/kernels/cpu/scratch.h"

namespace holon::kernels {

namespace {

struct Shape {
  int64_t n, c, h, w, o, kh, kw, oh, ow, groups;
  int64_t inner() const { return c / groups * kh * kw; }
};

Shape shape_of(const Array& x, const Array& w, const Array& out, const Conv2d& conv) {
  return {x.shape[0], x.shape[1], x.shape[2],   x.shape[3],   out.shape[1],
          w.shape[2], w.shape[3], out.shape[2], out.shape[3], conv.groups};
}

Array one_image(const Array& x, int64_t image, int64_t first, int64_t count) {
  return x.view({count, x.shape[2], x.shape[3]}, {x.strides[1], x.strides[2], x.strides[3]},
                image * x.strides[0] + first * x.strides[1]);
}

void copy(const Array& from, Array& to) {
  visit_dtype(from.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int last = from.ndim() - 1;
    for_each_row(from.shape, from.strides, to.strides, [&](int64_t a, int64_t b) {
      const T* p = from.data<T>() + a;
      T* q = to.data<T>() + b;
      for (int64_t i = 0; i < from.shape[last]; ++i) q[i * to.strides[last]] = p[i * from.strides[last]];
    });
  });
}

// The image [c, h, w] as a matrix [c, h * w], a view where the strides allow one.
Array as_matrix(const Array& x) {
  const Dims shape{x.shape[0], x.shape[1] * x.shape[2]};
  Dims strides;
  if (view_strides(x.shape, x.strides, shape, &strides)) return x.view(shape, strides);
  Array y = Array::empty(x.shape, x.dtype);
  copy(x, y);
  return y.view(shape, {shape[1], 1});
}

Array weight_matrix(const Array& w, int64_t group, const Shape& s) {
  const int64_t o = s.o / s.groups;
  Array part = w.view({o, s.c / s.groups, s.kh, s.kw}, w.strides, group * o * w.strides[0]);
  const Dims shape{o, s.inner()};
  Dims strides;
  if (view_strides(part.shape, part.strides, shape, &strides)) return part.view(shape, strides);
  Array y = Array::empty(part.shape, w.dtype);
  copy(part, y);
  return y.view(shape, {shape[1], 1});
}

// f(row of the im2col matrix, offset of its first input in the plane or what it would be, first and last output column
// inside) for each (channel, place in the window, output row).
template <class F>
void over_columns(const Shape& s, const Conv2d& conv, F&& f) {
  for (int64_t c = 0, row = 0; c < s.c / s.groups; ++c)
    for (int64_t i = 0; i < s.kh; ++i)
      for (int64_t j = 0; j < s.kw; ++j, ++row) {
        // Columns whose input w0 + q * stride lies in [0, w).
        const int64_t w0 = j * conv.dilation[1] - conv.padding[1], step = conv.stride[1];
        const int64_t first = w0 < 0 ? std::min((-w0 + step - 1) / step, s.ow) : 0;
        const int64_t end = std::max(first, std::min(s.ow, s.w > w0 ? (s.w - w0 + step - 1) / step : 0));
        for (int64_t oh = 0; oh < s.oh; ++oh) {
          const int64_t h = oh * conv.stride[0] - conv.padding[0] + i * conv.dilation[0];
          f(row, oh, c, h, w0, first, h >= 0 && h < s.h ? end : first);
        }
      }
}

template <class T>
void im2col(const Array& x, const Shape& s, const Conv2d& conv, T* cols) {
  over_columns(s, conv, [&](int64_t row, int64_t oh, int64_t c, int64_t h, int64_t w0, int64_t first, int64_t end) {
    T* to = cols + (row * s.oh + oh) * s.ow;
    const T* from = x.data<T>() + c * x.strides[0] + h * x.strides[1] + w0 * x.strides[2];
    const int64_t step = conv.stride[1] * x.strides[2];
    for (int64_t q = 0; q < first; ++q) to[q] = T{};
    if (step == 1)
      std::copy(from + first, from + end, to + first);
    else
      for (int64_t q = first; q < end; ++q) to[q] = from[q * step];
    for (int64_t q = end; q < s.ow; ++q) to[q] = T{};
  });
}

template <class T>
void add_columns(const T* cols, const Shape& s, const Conv2d& conv, Array& x) {
  using C = typename DTypeOf<T>::Compute;
  over_columns(s, conv, [&](int64_t row, int64_t oh, int64_t c, int64_t h, int64_t w0, int64_t first, int64_t end) {
    const T* from = cols + (row * s.oh + oh) * s.ow;
    T* to = x.data<T>() + c * x.strides[0] + h * x.strides[1] + w0 * x.strides[2];
    const int64_t step = conv.stride[1] * x.strides[2];
    if (step == 1)
      for (int64_t q = first; q < end; ++q)
        to[q] = static_cast<T>(static_cast<C>(static_cast<C>(to[q]) + static_cast<C>(from[q])));
    else
      for (int64_t q = first; q < end; ++q)
        to[q * step] = static_cast<T>(static_cast<C>(static_cast<C>(to[q * step]) + static_cast<C>(from[q])));
  });
}

// A product of a half array is rounded once per image; sums over images are not the place to lose digits.
void refuse_half(DType dtype) {
  HOLON_CHECK(dtype != DType::kFloat16 && dtype != DType::kBFloat16, "{} goes through float32.", name(dtype));
}

}  // namespace

void conv2d_plain(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out) {
  refuse_half(x.dtype);
  const Shape s = shape_of(x, w, out, conv);
  if (out.numel() == 0) return;
  Array cols = Array::empty({s.inner(), s.oh * s.ow}, x.dtype),
        result = Array::empty({s.o / s.groups, s.oh, s.ow}, x.dtype);
  for (int64_t group = 0; group < s.groups; ++group) {
    Array weight = weight_matrix(w, group, s);
    for (int64_t image = 0; image < s.n; ++image) {
      Array part = one_image(x, image, group * s.c / s.groups, s.c / s.groups);
      Array flat = result.view({s.o / s.groups, s.oh * s.ow}, {s.oh * s.ow, 1});
      visit_dtype(x.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        im2col<T>(part, s, conv, cols.data<T>());
      });
      matmul(weight, cols, flat);
      if (bias)
        visit_dtype(x.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          using C = typename DTypeOf<T>::Compute;
          for (int64_t o = 0; o < s.o / s.groups; ++o) {
            const C b = static_cast<C>(bias->data<T>()[(group * s.o / s.groups + o) * bias->strides[0]]);
            T* row = flat.data<T>() + o * s.oh * s.ow;
            for (int64_t i = 0; i < s.oh * s.ow; ++i)
              row[i] = static_cast<T>(static_cast<C>(static_cast<C>(row[i]) + b));
          }
        });
      Array target = one_image(out, image, group * s.o / s.groups, s.o / s.groups);
      copy(result, target);
    }
  }
}

void conv2d_backward_data_plain(const Array& dy, const Array& w, const Conv2d& conv, Array& dx) {
  refuse_half(dx.dtype);
  const Shape s = shape_of(dx, w, dy, conv);
  if (dx.numel() == 0) return;
  const bool adjacent = dx.strides[3] == 1;
  Array cols = Array::empty({s.inner(), s.oh * s.ow}, dx.dtype), sum;
  if (!adjacent) sum = Array::empty({s.c / s.groups, s.h, s.w}, dx.dtype);
  for (int64_t group = 0; group < s.groups; ++group) {
    Array weight = weight_matrix(w, group, s);
    weight = weight.view({s.inner(), s.o / s.groups}, {weight.strides[1], weight.strides[0]});
    for (int64_t image = 0; image < s.n; ++image) {
      Array target = one_image(dx, image, group * s.c / s.groups, s.c / s.groups);
      Array& to = adjacent ? target : sum;
      visit_dtype(dx.dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        for_each_row(to.shape, to.strides, [&](int64_t at) { std::fill_n(to.data<T>() + at, s.w, T{}); });
      });
      if (dy.numel() > 0) {
        matmul(weight, as_matrix(one_image(dy, image, group * s.o / s.groups, s.o / s.groups)), cols);
        visit_dtype(dx.dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          add_columns<T>(cols.data<T>(), s, conv, to);
        });
      }
      if (!adjacent) copy(sum, target);
    }
  }
}

void conv2d_backward_weights_plain(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias) {
  refuse_half(x.dtype);
  const Shape s = shape_of(x, dw, dy, conv);
  const int64_t o = s.o / s.groups;
  Array cols = Array::empty({s.inner(), s.oh * s.ow}, x.dtype);
  Array columns = cols.view({s.oh * s.ow, s.inner()}, {1, s.oh * s.ow});
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
    Array from = sum.view({o, s.c / s.groups, s.kh, s.kw}, contiguous_strides({o, s.c / s.groups, s.kh, s.kw}));
    Array to = dw.view(from.shape, dw.strides, group * o * dw.strides[0]);
    copy(from, to);
  }
  if (!dbias) return;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename DTypeOf<T>::Compute;
    for (int64_t c = 0; c < s.o; ++c) {
      C total{};
      for (int64_t n = 0; n < s.n; ++n)
        for (int64_t h = 0; h < s.oh; ++h)
          for (int64_t q = 0; q < s.ow; ++q)
            total = static_cast<C>(
                total +
                static_cast<C>(
                    dy.data<T>()[n * dy.strides[0] + c * dy.strides[1] + h * dy.strides[2] + q * dy.strides[3]]));
      dbias->data<T>()[c * dbias->strides[0]] = static_cast<T>(total);
    }
  });
}

}  // namespace holon::kernels
