// Convolutions whose sums are trees (sum_tree.h): products of the matrix of windows [places, window and channels] of
// channels-last images, which is not made: tables say where its elements are in the images with their padding. What a
// window adds up is in the order of its places, then of the channels.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/conv_shape.h"
#include "holon/kernels/cpu/matrix_product.h"
#include "holon/kernels/cpu/tree_multiply.h"
#include "holon/kernels/cpu/tree_windows.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/sum_tree.h"
#include "holon/kernels/tree.h"

namespace holon::kernels::tree {

namespace {

using detail::shape_of;
using detail::with_depth;
using Shape = detail::ConvShape;

constexpr int64_t kTermsAtOnce = 1024;      // of a product that adds up several images
constexpr int64_t kColumnsBytes = 4 << 20;  // of matrices of windows that are made at once

// [n, c, d, h, w] as [n, d, h, w, c], a view.
Array channels_last(const Array& x) {
  const Dims &n = x.shape, &s = x.strides;
  return x.view({n[0], n[2], n[3], n[4], n[1]}, {s[0], s[2], s[3], s[4], s[1]});
}

Array channels_last_kernel(const Array& w) { return contiguous(channels_last(w)); }

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

  // Whether threads have something to do.
  bool is_large() const {
    return static_cast<double>(s.n * s.places()) * static_cast<double>(inner * s.o) >= kParallelWork;
  }
};

Windows::Axes axes_of(const Conv& g) {
  Windows::Axes axes;
  for (int i = 0; i < 3; ++i) {
    axes.size[i] = g.s.in[i], axes.before[i] = g.conv.padding[i], axes.after[i] = g.conv.padding[3 + i];
    axes.kernel[i] = g.s.kernel[i], axes.stride[i] = g.conv.stride[i], axes.dilation[i] = g.conv.dilation[i];
    axes.out[i] = g.s.out[i];
  }
  return axes;
}

// Products of the windows of images with filters [inner, outputs] of each group.
struct WindowProduct {
  const Array& images;
  Windows::Axes axes;
  int64_t groups, channels, inner, outputs;  // the last three of a group
  TreeOperand filters;
  int64_t filters_step;  // elements from group to group
  int64_t runs;          // of terms, see multiply()

  // Of images [first, end). out: of all, contiguous.
  void run(int64_t first, int64_t end, Array& out) const {
    const int64_t places = axes.out[0] * axes.out[1] * axes.out[2], row = groups * outputs;
    Windows rows(images, axes, channels);
    for (; first < end; first += rows.at_once()) {
      const int64_t count = std::min(rows.at_once(), end - first);
      for (int64_t group = 0; group < groups; ++group) {
        TreeOperand of_group = filters;
        of_group.data += group * filters_step;
        multiply(count * places, outputs, inner, rows.matrix(first, count, group * channels), of_group,
                 out.data<float>() + first * places * row + group * outputs, row, runs);
      }
    }
  }
  // By threads: each has images of its own, or there are too few.
  void run(const Conv& g, Array& out) const {
    const int64_t n = images.shape[0];
    parallel_for(n, g.is_large() && n >= num_threads() ? 1 : n,
                 [&](int64_t first, int64_t end) { run(first, end, out); });
  }
};

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

  int64_t images_, leaf_;
  Array carried_, more_;
  std::vector<Array> levels_;
};

}  // namespace

void conv2d(const Array& x_, const Array& w_, const Array* bias, const Conv2d& conv_, Array& out_) {
  const Array x = channels_last(with_depth(x_)), w = with_depth(w_), out = with_depth(out_);
  const Conv g(with_depth(x_), w, out, with_depth(conv_, x_.ndim()));
  const Array kernel = channels_last_kernel(w);
  Array result = channels_last(out);
  if (!result.is_contiguous()) result = Array::empty(result.shape, result.dtype);
  const TreeOperand filters{kernel.data<float>(), 1, g.inner};
  WindowProduct{x, axes_of(g), g.s.groups, g.c, g.inner, g.o, filters, g.o * g.inner, 1}.run(g, result);
  if (bias) {
    const Array along = bias->view({1, 1, 1, 1, g.s.o}, {0, 0, 0, 0, bias->strides[0]});
    binary(BinaryOp::Add, result, along, result);
  }
  if (result.storage.get() == out.storage.get()) return;
  Array to = channels_last(out);
  copy(result, to);
}

namespace {

// What a pixel of dx adds up: the trees of the outputs of each place whose window it is in, in the order of the places.

// Adds the products of a window's places to the image.
void scatter(const Conv& g, const float* cols, int64_t group, float* image) {
  auto inside = [](int64_t at, int64_t size) { return at >= 0 && at < size; };
  const Shape& s = g.s;
  for (int64_t od = 0; od < s.out[0]; ++od)
    for (int64_t oh = 0; oh < s.out[1]; ++oh)
      for (int64_t ow = 0; ow < s.out[2]; ++ow)
        for (int64_t a = 0; a < s.kernel[0]; ++a)
          for (int64_t i = 0; i < s.kernel[1]; ++i)
            for (int64_t j = 0; j < s.kernel[2]; ++j, cols += g.c) {
              const int64_t d = od * g.conv.stride[0] - g.conv.padding[0] + a * g.conv.dilation[0];
              const int64_t h = oh * g.conv.stride[1] - g.conv.padding[1] + i * g.conv.dilation[1];
              const int64_t w = ow * g.conv.stride[2] - g.conv.padding[2] + j * g.conv.dilation[2];
              if (!inside(d, s.in[0]) || !inside(h, s.in[1]) || !inside(w, s.in[2])) continue;
              float* to = image + ((d * s.in[1] + h) * s.in[2] + w) * s.c + group * g.c;
              for (int64_t k = 0; k < g.c; ++k) to[k] += cols[k];
            }
}

void data_by_scatter(const Conv& g, const Array& dy, const Array& w, Array& dx) {
  const Array kernel = channels_last_kernel(w), gradient = contiguous(dy);
  std::memset(dx.bytes(), 0, dx.nbytes());
  const int64_t places = g.s.places(), at_once = images_of(g.s.n, places * g.inner, kColumnsBytes);
  Array cols = Array::empty({at_once * places, g.inner}, DType::kFloat32);
  for (int64_t first = 0; first < g.s.n; first += at_once) {
    const int64_t images = std::min(at_once, g.s.n - first);
    for (int64_t group = 0; group < g.s.groups; ++group) {
      multiply(images * places, g.inner, g.o, {gradient.data<float>() + first * places * g.s.o + group * g.o, g.s.o, 1},
               {kernel.data<float>() + group * g.o * g.inner, g.inner, 1}, cols.data<float>(), g.inner);
      for (int64_t i = 0; i < images; ++i)
        scatter(g, cols.data<float>() + i * places * g.inner, group, dx.data<float>() + (first + i) * g.pixels * g.s.c);
    }
  }
}

// Whether dx is the products of dy's windows, too, one for each pixel, and which these are. It is not where there are
// strides, or more padding than windows reach; few channels would leave tiles empty.
bool gradient_windows(const Conv& g, Windows::Axes& axes) {
  constexpr int64_t kChannels = 16;
  for (int i = 0; i < 3; ++i) {
    const int64_t reach = g.conv.dilation[i] * (g.s.kernel[i] - 1);
    axes.size[i] = g.s.out[i], axes.before[i] = reach - g.conv.padding[i],
    axes.after[i] = reach - g.conv.padding[3 + i];
    axes.kernel[i] = g.s.kernel[i], axes.stride[i] = 1, axes.dilation[i] = g.conv.dilation[i], axes.out[i] = g.s.in[i];
    if (g.conv.stride[i] != 1 || axes.before[i] < 0 || axes.after[i] < 0) return false;
  }
  return g.c >= kChannels;
}

void data_by_windows(const Conv& g, const Windows::Axes& axes, const Array& dy, const Array& w, Array& dx) {
  // [group, places of a window from the last to the first, o, c]
  const int64_t places = g.inner / g.c;
  Array filters = Array::empty({g.s.groups, places, g.o, g.c}, DType::kFloat32);
  const Array kernel = channels_last_kernel(w).view({g.s.groups, g.o, places, g.c}, {g.o * g.inner, g.inner, g.c, 1});
  for (int64_t place = 0; place < places; ++place) {
    const Array from = kernel.view({g.s.groups, g.o, g.c}, {g.o * g.inner, g.inner, 1}, (places - 1 - place) * g.c);
    Array to = filters.view({g.s.groups, g.o, g.c}, {places * g.o * g.c, g.c, 1}, place * g.o * g.c);
    copy(from, to);
  }
  const int64_t inner = places * g.o;
  WindowProduct{dy, axes, g.s.groups, g.o, inner, g.c, {filters.data<float>(), g.c, 1}, inner * g.c, places}.run(g, dx);
}

}  // namespace

void conv2d_backward_data(const Array& dy_, const Array& w_, const Conv2d& conv_, Array& dx_) {
  const Array dy = channels_last(with_depth(dy_)), w = with_depth(w_), dx = with_depth(dx_);
  const Conv g(dx, w, with_depth(dy_), with_depth(conv_, dx_.ndim()));
  Array result = channels_last(dx);
  if (!result.is_contiguous()) result = Array::empty(result.shape, result.dtype);
  Windows::Axes axes;
  if (gradient_windows(g, axes))
    data_by_windows(g, axes, dy, w, result);
  else
    data_by_scatter(g, dy, w, result);
  if (result.storage.get() == dx.storage.get()) return;
  Array to = channels_last(dx);
  copy(result, to);
}

namespace {

// How many images one product adds up: so that its tree is that of the images' own, and its panels stay in the second
// cache. Pairs of images are subtrees where halving leaves single images.
int64_t images_of_product(int64_t total, int64_t places, int64_t most) {
  int64_t images = 1;
  const bool single = std::has_single_bit(static_cast<uint64_t>(total));
  while (single && 2 * images <= std::min(most, total) && 2 * images * places <= kTermsAtOnce &&
         leaf_length(2 * images * places) == leaf_length(places))
    images *= 2;
  return images;
}

// The sums of each group [outputs, inner] of images [first, first + n).
std::vector<Array> weight_sums(const Conv& g, const Array& x, const Array& dy, int64_t first, int64_t n) {
  const int64_t places = g.s.places();
  Windows columns(x, axes_of(g), g.c);
  const int64_t chunk = images_of_product(n, places, columns.at_once());
  std::vector<ImageTree> trees;
  for (int64_t group = 0; group < g.s.groups; ++group) trees.emplace_back(n / chunk, Dims{g.o, g.inner});
  for (int64_t i = 0; i < n / chunk; ++i)
    for (int64_t group = 0; group < g.s.groups; ++group) {
      const int64_t image = first + i * chunk;
      const TreeOperand windows = columns.matrix(image, chunk, group * g.c);
      const TreeOperand gradient{dy.data<float>() + image * places * g.s.o + group * g.o, 1, g.s.o};
      trees[to_size(group)].add(i, [&](Array& product) {
        multiply(g.o, g.inner, chunk * places, gradient, windows, product.data<float>(), g.inner);
      });
    }
  std::vector<Array> sums;
  for (const ImageTree& tree : trees) sums.push_back(tree.sum());
  return sums;
}

}  // namespace

void conv2d_backward_weights(const Array& dy_, const Array& x_, const Conv2d& conv_, Array& dw_) {
  const Array dw = with_depth(dw_), x = channels_last(with_depth(x_)), dy = contiguous(channels_last(with_depth(dy_)));
  const Conv g(with_depth(x_), dw, with_depth(dy_), with_depth(conv_, x_.ndim()));
  // Threads have subtrees of images, where there are enough.
  int64_t parts = 1;
  if (g.is_large())
    while (parts < num_threads() && g.s.n % (2 * parts) == 0) parts *= 2;
  if (parts < num_threads()) parts = 1;
  std::vector<std::vector<Array>> sums(to_size(parts));
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    const int64_t n = g.s.n / parts;
    for (int64_t i = begin; i < end; ++i) sums[to_size(i)] = weight_sums(g, x, dy, i * n, n);
  });
  const Array rows = channels_last(dw);
  for (int64_t group = 0; group < g.s.groups; ++group) {
    auto sum = [&](int64_t i) -> Array& { return sums[to_size(i)][to_size(group)]; };
    for (int64_t step = 1; step < parts; step *= 2)
      for (int64_t i = 0; i < parts; i += 2 * step) binary(BinaryOp::Add, sum(i), sum(i + step), sum(i));
    Array to =
        rows.view({g.o, g.s.kernel[0], g.s.kernel[1], g.s.kernel[2], g.c}, rows.strides, group * g.o * rows.strides[0]);
    copy(sum(0).view(to.shape, contiguous_strides(to.shape)), to);
  }
}

}  // namespace holon::kernels::tree
