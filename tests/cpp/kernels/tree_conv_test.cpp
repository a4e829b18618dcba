// Convolutions in trees: right, and of the same bits whatever part of images, channels, outputs or groups a rank has.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "holon/kernels/conv.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/sum_tree.h"
#include "holon/kernels/tree.h"
#include "kernels/same_bits.h"

namespace holon::kernels {
namespace {

struct Case {
  int64_t images, channels, outputs;
  Dims size, kernel;
  Conv2d conv;

  Dims x_shape() const { return joined({images, channels}, size); }
  Dims w_shape() const { return joined({outputs, channels / conv.groups}, kernel); }
  Dims y_shape() const {
    Dims out;
    const int axes = size.size(), behind = axes == 3 ? 3 : 2;
    for (int i = 0; i < axes; ++i)
      out.push_back(conv_out_size(size[i], kernel[i], conv.stride[i], conv.padding[i], conv.padding[behind + i],
                                  conv.dilation[i]));
    return joined({images, outputs}, out);
  }

 private:
  static Dims joined(Dims a, const Dims& b) {
    for (int64_t n : b) a.push_back(n);
    return a;
  }
};

// Two axes and three; strides, dilations, uneven padding, more padding than windows reach, none, groups, one channel,
// and so many images that they come in several parts.
std::vector<Case> cases() {
  return {
      {4, 3, 5, {9, 8}, {3, 3}, {.padding = {1, 1, 1, 1}}},
      {3, 32, 16, {7, 6}, {5, 3}, {.padding = {2, 0, 1, 2}}},
      {2, 16, 4, {5, 5}, {3, 3}, {.padding = {4, 4, 4, 4}}},
      {2, 20, 6, {11, 10}, {3, 2}, {.stride = {2, 3}, .padding = {1, 0, 1, 1}}},
      {2, 36, 4, {10, 9}, {3, 3}, {.padding = {2, 2, 2, 2}, .dilation = {2, 1}}},
      {5, 6, 9, {6, 7}, {1, 1}, {}},
      {2, 48, 6, {6, 6}, {3, 3}, {.padding = {1, 1, 1, 1}, .groups = 3}},
      {2, 8, 8, {6, 6}, {3, 3}, {.padding = {1, 1, 1, 1}, .groups = 8}},
      {2, 1, 40, {12, 12}, {5, 5}, {.padding = {2, 2, 2, 2}}},
      {3, 18, 4, {4, 5, 6}, {3, 2, 3}, {.padding = {1, 0, 1, 1, 1, 1}}},
      {16, 32, 3, {20, 20}, {3, 3}, {.padding = {1, 1, 1, 1}}},
  };
}

Array magnitudes(const Array& a) {
  Array m = Array::empty(a.shape, a.dtype);
  const Array from = contiguous(a);
  for (int64_t i = 0; i < m.numel(); ++i) m.data<float>()[i] = std::abs(from.data<float>()[i]);
  return m;
}

// f(of two arrays, out) by trees against the plain one; an error of a sum is one of the sum of its terms' magnitudes.
template <class F, class Plain>
void expect_right(const Array& a, const Array& b, const Dims& shape, F&& by_tree, Plain&& plain) {
  Array found = Array::empty(shape, DType::kFloat32), want = Array::empty(shape, DType::kFloat32),
        most = Array::empty(shape, DType::kFloat32);
  by_tree(a, b, found);
  plain(a, b, want);
  plain(magnitudes(a), magnitudes(b), most);
  for (int64_t i = 0; i < found.numel(); ++i)
    ASSERT_NEAR(found.data<float>()[i], want.data<float>()[i], 1e-5 * most.data<float>()[i]) << "element " << i;
}

TEST(TreeConv, AreRight) {
  int number = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE(number++);
    const Array x = random_array(c.x_shape()), w = random_array(c.w_shape()), dy = random_array(c.y_shape());
    expect_right(
        x, w, c.y_shape(), [&](const Array& a, const Array& b, Array& y) { tree::conv2d(a, b, nullptr, c.conv, y); },
        [&](const Array& a, const Array& b, Array& y) { conv2d_plain(a, b, nullptr, c.conv, y); });
    expect_right(
        dy, w, c.x_shape(),
        [&](const Array& a, const Array& b, Array& dx) { tree::conv2d_backward_data(a, b, c.conv, dx); },
        [&](const Array& a, const Array& b, Array& dx) { conv2d_backward_data_plain(a, b, c.conv, dx); });
    expect_right(
        dy, x, c.w_shape(),
        [&](const Array& a, const Array& b, Array& dw) { tree::conv2d_backward_weights(a, b, c.conv, dw); },
        [&](const Array& a, const Array& b, Array& dw) { conv2d_backward_weights_plain(a, b, c.conv, dw); });
  }
}

struct Results {
  Array y, dx, dw;
};

Results all(const Array& x, const Array& w, const Array& dy, const Conv2d& conv) {
  Results r{Array::empty(dy.shape, dy.dtype), Array::empty(x.shape, x.dtype), Array::empty(w.shape, w.dtype)};
  tree::conv2d(x, w, nullptr, conv, r.y);
  tree::conv2d_backward_data(dy, w, conv, r.dx);
  tree::conv2d_backward_weights(dy, x, conv, r.dw);
  return r;
}

// The part [begin, end) of an axis, a view.
Array part(const Array& a, int axis, int64_t begin, int64_t end) {
  Dims shape = a.shape;
  shape[axis] = end - begin;
  return a.view(shape, a.strides, begin * a.strides[axis]);
}

TEST(TreeConv, PartsOfImagesHaveTheSameBits) {
  for (const Case& c : cases()) {
    const Array x = random_array(c.x_shape()), w = random_array(c.w_shape()), dy = random_array(c.y_shape());
    const Results whole = all(x, w, dy, c.conv);
    for (auto [begin, end] : {std::pair{int64_t{0}, int64_t{1}}, {c.images / 2, c.images}}) {
      const Results some = all(part(x, 0, begin, end), w, part(dy, 0, begin, end), c.conv);
      expect_same_bits(some.y, part(whole.y, 0, begin, end));
      expect_same_bits(some.dx, part(whole.dx, 0, begin, end));
    }
  }
}

// Images' sums are halved as often as their number allows, which may leave an odd one.
TEST(TreeConv, PartsOfWeightGradientsJoin) {
  for (const Dims& size : {Dims{4, 4}, Dims{3, 3}, Dims{6, 8}, Dims{14, 14}}) {
    const Case c{64, 3, 5, size, {3, 3}, {.padding = {1, 1, 1, 1}}};
    const Array x = random_array(c.x_shape()), dy = random_array(c.y_shape());
    auto gradient = [&](int64_t begin, int64_t end) {
      Array dw = Array::empty(c.w_shape(), DType::kFloat32);
      tree::conv2d_backward_weights(part(dy, 0, begin, end), part(x, 0, begin, end), c.conv, dw);
      return dw;
    };
    ASSERT_GE(subtrees(c.images), 8);
    expect_parts_to_join(c.images, gradient(0, c.images), gradient);
    for (int64_t images : {2, 6, 12, 18, 36}) {
      const Array whole = gradient(0, images), half = gradient(0, images / 2), other = gradient(images / 2, images);
      for (int64_t i = 0; i < whole.numel(); ++i)
        ASSERT_EQ(whole.data<float>()[i], half.data<float>()[i] + other.data<float>()[i]) << images << " images";
    }
  }
}

// 1 channel is scattered, 16 are not: which way is taken shows nowhere.
TEST(TreeConv, PartsOfChannelsAndOutputsHaveTheSameBits) {
  for (const Case& c : cases()) {
    if (c.conv.groups > 1) continue;
    const Array x = random_array(c.x_shape()), w = random_array(c.w_shape()), dy = random_array(c.y_shape());
    const Results whole = all(x, w, dy, c.conv);
    for (int64_t count : {int64_t{1}, c.channels / 2, std::min<int64_t>(c.channels, 16)}) {
      if (count == 0) continue;
      const Results some = all(part(x, 1, 0, count), part(w, 1, 0, count), dy, c.conv);
      expect_same_bits(some.dx, part(whole.dx, 1, 0, count));
      expect_same_bits(some.dw, part(whole.dw, 1, 0, count));
    }
    const int64_t half = c.outputs / 2;
    const Results some = all(x, part(w, 0, half, c.outputs), part(dy, 1, half, c.outputs), c.conv);
    expect_same_bits(some.y, part(whole.y, 1, half, c.outputs));
    expect_same_bits(some.dw, part(whole.dw, 0, half, c.outputs));
  }
}

TEST(TreeConv, PartsOfGroupsHaveTheSameBits) {
  for (const Case& c : cases()) {
    if (c.conv.groups == 1) continue;
    const Array x = random_array(c.x_shape()), w = random_array(c.w_shape()), dy = random_array(c.y_shape());
    const Results whole = all(x, w, dy, c.conv);
    Conv2d one = c.conv;
    one.groups = 1;
    const int64_t in = c.channels / c.conv.groups, out = c.outputs / c.conv.groups;
    for (int64_t g = 0; g < c.conv.groups; ++g) {
      const Results some = all(part(x, 1, g * in, (g + 1) * in), part(w, 0, g * out, (g + 1) * out),
                               part(dy, 1, g * out, (g + 1) * out), one);
      expect_same_bits(some.y, part(whole.y, 1, g * out, (g + 1) * out));
      expect_same_bits(some.dx, part(whole.dx, 1, g * in, (g + 1) * in));
      expect_same_bits(some.dw, part(whole.dw, 0, g * out, (g + 1) * out));
    }
  }
}

TEST(TreeConv, StridesAndThreadsChangeNothing) {
  // Channels last in memory.
  auto turned = [](const Array& a) {
    Dims axes{0};
    for (int i = 2; i < a.ndim(); ++i) axes.push_back(i);
    axes.push_back(1);
    Dims shape, strides;
    for (int axis : axes) shape.push_back(a.shape[axis]), strides.push_back(a.strides[axis]);
    const Array last = contiguous(a.view(shape, strides));
    Dims back{last.strides[0], 1};
    for (int i = 1; i + 1 < last.ndim(); ++i) back.push_back(last.strides[i]);
    return last.view(a.shape, back);
  };
  const int before = omp_get_max_threads();
  for (const Case& c : cases()) {
    const Array x = random_array(c.x_shape()), w = random_array(c.w_shape()), dy = random_array(c.y_shape());
    omp_set_num_threads(1);
    const Results want = all(x, w, dy, c.conv);
    for (int threads : {1, 3}) {
      omp_set_num_threads(threads);
      Results found{turned(want.y), turned(want.dx), turned(want.dw)};
      for (Array* a : {&found.y, &found.dx, &found.dw}) std::memset(a->storage->data(), 0xff, a->nbytes());
      tree::conv2d(turned(x), turned(w), nullptr, c.conv, found.y);
      tree::conv2d_backward_data(turned(dy), turned(w), c.conv, found.dx);
      tree::conv2d_backward_weights(turned(dy), turned(x), c.conv, found.dw);
      expect_same_bits(found.y, want.y);
      expect_same_bits(found.dx, want.dx);
      expect_same_bits(found.dw, want.dw);
    }
  }
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace holon::kernels
