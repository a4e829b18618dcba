// Convolutions whose sums are trees (sum_tree.h): products of im2col matrices [places, window and channels], of
// channels-last images. What a window adds up is in the order of its places, then of the channels.
#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/conv_shape.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/sum_tree.h"
#include "holon/kernels/tree.h"

namespace holon::kernels::tree {

namespace {

using detail::shape_of;
using detail::with_depth;
using Shape = detail::ConvShape;

constexpr int64_t kColumnsBytes = 4 << 20;  // of im2col matrices that are multiplied at once

// [n, c, d, h, w] as [n, d, h, w, c], a view.
Array channels_last(const Array& x) {
  const Dims &n = x.shape, &s = x.strides;
  return x.view({n[0], n[2], n[3], n[4], n[1]}, {s[0], s[2], s[3], s[4], s[1]});
}

// w [o, c, a, i, j] as [o, a, i, j, c], contiguous: rows of products.
Array window_rows(const Array& w) { return contiguous(channels_last(w)); }

// f(place, first place in the window, how many, the image's position of the first, or -1 outside) for the windows of
// all places of an output. Positions of one call are neighbours.
template <class F>
void over_windows(const Shape& s, const Conv2d& conv, F&& f) {
  auto inside = [](int64_t at, int64_t size) { return at >= 0 && at < size; };
  const int64_t width = s.kernel[2], step = conv.dilation[2];
  int64_t place = 0;
  for (int64_t od = 0; od < s.out[0]; ++od)
    for (int64_t oh = 0; oh < s.out[1]; ++oh)
      for (int64_t ow = 0; ow < s.out[2]; ++ow, ++place) {
        const int64_t w = ow * conv.stride[2] - conv.padding[2];
        const int64_t first = w < 0 ? std::min((-w + step - 1) / step, width) : 0;
        const int64_t end = std::clamp<int64_t>(s.in[2] > w ? (s.in[2] - w + step - 1) / step : 0, first, width);
        int64_t window = 0;
        for (int64_t a = 0; a < s.kernel[0]; ++a)
          for (int64_t i = 0; i < s.kernel[1]; ++i, window += width) {
            const int64_t d = od * conv.stride[0] - conv.padding[0] + a * conv.dilation[0];
            const int64_t h = oh * conv.stride[1] - conv.padding[1] + i * conv.dilation[1];
            if (!inside(d, s.in[0]) || !inside(h, s.in[1])) {
              f(place, window, width, int64_t{-1});
              continue;
            }
            const int64_t row = (d * s.in[1] + h) * s.in[2] + w;
            if (first > 0) f(place, window, first, int64_t{-1});
            if (step == 1) {
              if (end > first) f(place, window + first, end - first, row + first);
            } else {
              for (int64_t j = first; j < end; ++j) f(place, window + j, int64_t{1}, row + j * step);
            }
            if (end < width) f(place, window + end, width - end, int64_t{-1});
          }
      }
}

// One call, of arrays [n, ...] with a depth.
struct Conv {
  Shape s;
  Conv2d conv;
  int64_t c, o, inner, pixels;  // channels and outputs of a group

  Conv(const Array& x, const Array& w, const Array& out, const Conv2d& given)
      : s(shape_of(x, w, out, given)),
        conv(given),
        c(s.c / s.groups),
        o(s.o / s.groups),
        inner(s.inner()),
        pixels(s.in[0] * s.in[1] * s.in[2]) {}

  // cols [places, inner] of an image [pixels, channels].
  void gather(const float* image, int64_t group, float* cols) const {
    const float* from = image + group * c;
    over_windows(s, conv, [&](int64_t place, int64_t window, int64_t count, int64_t at) {
      float* to = cols + place * inner + window * c;
      if (at < 0) return void(std::fill_n(to, count * c, 0.0f));
      if (c == s.c) return void(std::copy_n(from + at * c, count * c, to));
      for (int64_t j = 0; j < count; ++j) std::copy_n(from + (at + j) * s.c, c, to + j * c);
    });
  }
  // Adds cols to the image, in the order of places and windows.
  void scatter(const float* cols, int64_t group, float* image) const {
    float* to = image + group * c;
    over_windows(s, conv, [&](int64_t place, int64_t window, int64_t count, int64_t at) {
      if (at < 0) return;
      const float* from = cols + place * inner + window * c;
      for (int64_t j = 0; j < count; ++j)
        for (int64_t k = 0; k < c; ++k) to[(at + j) * s.c + k] += from[j * c + k];
    });
  }
  int64_t images_at_once() const {
    const int64_t bytes = s.places() * inner * static_cast<int64_t>(sizeof(float));
    return std::clamp<int64_t>(kColumnsBytes / std::max<int64_t>(bytes, 1), 1, std::max<int64_t>(s.n, 1));
  }
};

Array matrix(float* data, int64_t rows, int64_t columns, int64_t row_stride, const Array& of) {
  return of.view({rows, columns}, {row_stride, 1}, data - of.data<float>());
}

// Sums of products of images in a tree: their number is halved while it is even, and the images of what is left are
// added one after the other.
class ImageTree {
 public:
  ImageTree(int64_t images, const Dims& shape)
      : images_(images), leaf_(images / (images & -images)), carried_(Array::empty(shape, DType::kFloat32)) {}
  // product(out) writes that of image i; images come in order. Returns the sum after the last one.
  template <class Product>
  void add(int64_t i, Product&& product) {
    if (i % leaf_ == 0) {
      product(carried_);
    } else {
      if (!more_.defined()) more_ = Array::empty(carried_.shape, carried_.dtype);
      product(more_);
      add_to(carried_, more_);
    }
    if (i % leaf_ + 1 < leaf_) return;
    push_leaf(
        static_cast<uint64_t>(i / leaf_), [&](int l) { add_to(carried_, levels_[to_size(l)]); },
        [&](int l) {
          if (i + 1 == images_) return;
          while (to_size(l) >= levels_.size()) levels_.push_back(Array::empty(carried_.shape, carried_.dtype));
          std::swap(levels_[to_size(l)], carried_);
        });
  }
  const Array& sum() const { return carried_; }

 private:
  static void add_to(Array& sum, const Array& more) { binary(BinaryOp::Add, sum, more, sum); }

  const int64_t images_, leaf_;
  Array carried_, more_;
  std::vector<Array> levels_;
};

}  // namespace

void conv2d(const Array& x_, const Array& w_, const Array* bias, const Conv2d& conv_, Array& out_) {
  const Array w = with_depth(w_), out = with_depth(out_), x = contiguous(channels_last(with_depth(x_)));
  const Conv g(with_depth(x_), w, out, with_depth(conv_, x_.ndim()));
  const Array weight = window_rows(w);
  Array result = channels_last(out);
  if (!result.is_contiguous()) result = Array::empty(result.shape, result.dtype);
  const int64_t at_once = g.images_at_once(), places = g.s.places();
  Array cols = Array::empty({at_once * places, g.inner}, DType::kFloat32);
  for (int64_t first = 0; first < g.s.n; first += at_once) {
    const int64_t images = std::min(at_once, g.s.n - first);
    for (int64_t group = 0; group < g.s.groups; ++group) {
      for (int64_t i = 0; i < images; ++i)
        g.gather(x.data<float>() + (first + i) * g.pixels * g.s.c, group, cols.data<float>() + i * places * g.inner);
      const Array rows = matrix(cols.data<float>(), images * places, g.inner, g.inner, cols);
      const Array filters = weight.view({g.inner, g.o}, {1, g.inner}, group * g.o * g.inner);
      Array to =
          matrix(result.data<float>() + first * places * g.s.o + group * g.o, images * places, g.o, g.s.o, result);
      matmul(rows, filters, to);
    }
  }
  if (bias) {
    const Array along = bias->view({1, 1, 1, 1, g.s.o}, {0, 0, 0, 0, bias->strides[0]});
    binary(BinaryOp::Add, result, along, result);
  }
  if (result.storage.get() == out.storage.get()) return;
  Array to = channels_last(out);
  copy(result, to);
}

void conv2d_backward_data(const Array& dy_, const Array& w_, const Conv2d& conv_, Array& dx_) {
  const Array w = with_depth(w_), dx = with_depth(dx_), dy = contiguous(channels_last(with_depth(dy_)));
  const Conv g(dx, w, with_depth(dy_), with_depth(conv_, dx_.ndim()));
  const Array weight = window_rows(w);
  Array result = channels_last(dx);
  if (!result.is_contiguous()) result = Array::empty(result.shape, result.dtype);
  std::memset(result.bytes(), 0, result.nbytes());
  const int64_t at_once = g.images_at_once(), places = g.s.places();
  Array cols = Array::empty({at_once * places, g.inner}, DType::kFloat32);
  for (int64_t first = 0; first < g.s.n; first += at_once) {
    const int64_t images = std::min(at_once, g.s.n - first);
    for (int64_t group = 0; group < g.s.groups; ++group) {
      const Array rows = dy.view({images * places, g.o}, {g.s.o, 1}, first * places * g.s.o + group * g.o);
      const Array filters = weight.view({g.o, g.inner}, {g.inner, 1}, group * g.o * g.inner);
      Array to = matrix(cols.data<float>(), images * places, g.inner, g.inner, cols);
      matmul(rows, filters, to);
      for (int64_t i = 0; i < images; ++i)
        g.scatter(cols.data<float>() + i * places * g.inner, group,
                  result.data<float>() + (first + i) * g.pixels * g.s.c);
    }
  }
  if (result.storage.get() == dx.storage.get()) return;
  Array to = channels_last(dx);
  copy(result, to);
}

void conv2d_backward_weights(const Array& dy_, const Array& x_, const Conv2d& conv_, Array& dw_) {
  const Array dw = with_depth(dw_), x = contiguous(channels_last(with_depth(x_))),
              dy = contiguous(channels_last(with_depth(dy_)));
  const Conv g(with_depth(x_), dw, with_depth(dy_), with_depth(conv_, x_.ndim()));
  const int64_t places = g.s.places();
  Array cols = Array::empty({places, g.inner}, DType::kFloat32);
  for (int64_t group = 0; group < g.s.groups; ++group) {
    ImageTree sums(g.s.n, {g.o, g.inner});
    for (int64_t i = 0; i < g.s.n; ++i) {
      g.gather(x.data<float>() + i * g.pixels * g.s.c, group, cols.data<float>());
      const Array gradient = dy.view({g.o, places}, {1, g.s.o}, i * places * g.s.o + group * g.o);
      sums.add(i, [&](Array& product) { matmul(gradient, cols, product); });
    }
    const Array &sum = sums.sum(), rows = channels_last(dw);
    Array to =
        rows.view({g.o, g.s.kernel[0], g.s.kernel[1], g.s.kernel[2], g.c}, rows.strides, group * g.o * rows.strides[0]);
    copy(sum.view(to.shape, contiguous_strides(to.shape)), to);
  }
}

}  // namespace holon::kernels::tree
