// The windows of convolutions as the rows of a matrix that is not made: tables say where its elements are.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/array/array.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/tree_gemm.h"

namespace holon::kernels::tree {

// How many images are at most most_bytes, but one at least.
inline int64_t images_of(int64_t total, int64_t elements, int64_t most_bytes) {
  const int64_t bytes = std::max<int64_t>(elements, 1) * static_cast<int64_t>(sizeof(float));
  return std::clamp<int64_t>(most_bytes / bytes, 1, std::max<int64_t>(total, 1));
}

// Channels-last images with zeros around them, some at a time, whose windows are the rows of a matrix.
class Windows {
 public:
  struct Axes {
    int64_t size[3], before[3], after[3], kernel[3], stride[3], dilation[3], out[3];
  };

  // group: the channels of a window. images: any strides, [n, d, h, w, channels].
  Windows(const Array& images, const Axes& axes, int64_t group) : images_(images), axes_(axes) {
    const int64_t channels = images.shape[4];
    bool padded = !images.is_contiguous();
    for (int i = 0; i < 3; ++i) {
      size_[i] = axes.size[i] + axes.before[i] + axes.after[i];
      padded = padded || size_[i] != axes.size[i];
    }
    image_ = size_[0] * size_[1] * size_[2] * channels;
    at_once_ = images_of(images.shape[0], image_, kBytesAtOnce);
    if (padded) {
      memory_ = Array::empty({at_once_, size_[0], size_[1], size_[2], channels}, DType::kFloat32);
      std::memset(memory_.bytes(), 0, memory_.nbytes());
    }
    const int64_t places = axes.out[0] * axes.out[1] * axes.out[2];
    places_.reserve(to_size(at_once_ * places));
    for (int64_t i = 0; i < at_once_; ++i)
      each(axes.out, axes.stride, [&](int64_t pixel) { places_.push_back(i * image_ + pixel * channels); });
    each(axes.kernel, axes.dilation, [&](int64_t pixel) {
      for (int64_t k = 0; k < group; ++k) terms_.push_back(pixel * channels + k);
    });
  }

  int64_t at_once() const { return at_once_; }
  // The matrix [places of images, window and channels] of images from `first` on, at_once() of them at most, and of
  // channels from `channel` on, until the next call. The first channel of some images comes before the others.
  TreeOperand matrix(int64_t first, int64_t images, int64_t channel) {
    if (!memory_.defined()) return operand(images_.data<float>() + first * image_ + channel);
    if (channel == 0) {
      Array from = images_.view(images_.shape, images_.strides, first * images_.strides[0]);
      from.shape[0] = images;
      int64_t inside = 0;
      for (int i = 0; i < 3; ++i) inside += axes_.before[i] * memory_.strides[1 + i];
      Array to = memory_.view(from.shape, memory_.strides, inside);
      copy(from, to);
    }
    return operand(memory_.data<float>() + channel);
  }

 private:
  static constexpr int64_t kBytesAtOnce = 512 << 10;  // they stay in the second cache

  TreeOperand operand(const float* data) const { return {data, 0, 0, places_.data(), terms_.data()}; }

  // f(pixel of the padded image) for counts of steps along the axes.
  template <class F>
  void each(const int64_t* count, const int64_t* step, F&& f) const {
    for (int64_t d = 0; d < count[0]; ++d)
      for (int64_t h = 0; h < count[1]; ++h)
        for (int64_t w = 0; w < count[2]; ++w) f((d * step[0] * size_[1] + h * step[1]) * size_[2] + w * step[2]);
  }

  const Array images_;
  const Axes axes_;
  int64_t size_[3], image_, at_once_;
  Array memory_;
  std::vector<int64_t> places_, terms_;
};

}  // namespace holon::kernels::tree
