// Padding around signals, images and volumes, and other resolutions of images.
#pragma once

#include <optional>

#include "holon/nn/module.h"
#include "holon/ops/resize.h"

namespace holon::nn {

// More elements around the last axes: before and after each, the last axis first. mode: "constant" (value), "reflect"
// (the mirror image), "replicate" (the outermost elements) or "circular" (the elements of the other end).
class Pad : public Layer<Pad> {
 public:
  explicit Pad(const Dims& padding, std::string_view mode = "constant", std::optional<Scalar> value = {})
      : padding_(padding), mode_(mode), value_(value) {}
  Tensor forward(const Tensor& x) const { return pad(x, padding_, mode_, value_); }

 private:
  Dims padding_;
  std::string mode_;
  std::optional<Scalar> value_;
};

// [n, c * r * r, h, w] to [n, c, h * r, w * r].
class PixelShuffle : public Layer<PixelShuffle> {
 public:
  explicit PixelShuffle(int64_t upscale_factor) : factor_(upscale_factor) {}
  Tensor forward(const Tensor& x) const { return pixel_shuffle(x, factor_); }

 private:
  int64_t factor_;
};

// [n, c, h * r, w * r] to [n, c * r * r, h, w].
class PixelUnshuffle : public Layer<PixelUnshuffle> {
 public:
  explicit PixelUnshuffle(int64_t downscale_factor) : factor_(downscale_factor) {}
  Tensor forward(const Tensor& x) const { return pixel_unshuffle(x, factor_); }

 private:
  int64_t factor_;
};

// Another resolution, by sizes or by a factor. mode: "nearest", "linear", "bilinear", "bicubic" or "trilinear".
struct UpsampleOptions {
  std::optional<Dims> size{};
  std::optional<double> scale_factor{};
  std::string mode = "nearest";
  std::optional<bool> align_corners{};
};
class Upsample : public Layer<Upsample> {
 public:
  explicit Upsample(const UpsampleOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) const {
    return interpolate(x, options_.size, options_.scale_factor, options_.mode, options_.align_corners);
  }

 private:
  UpsampleOptions options_;
};

// The windows of [n, c, h, w] as columns [n, c * kh * kw, windows]. Sizes: of height and width.
struct WindowOptions {
  Dims dilation{1, 1}, padding{0, 0}, stride{1, 1};
};
class Unfold : public Layer<Unfold> {
 public:
  explicit Unfold(const Dims& kernel, const WindowOptions& options = {}) : kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const {
    return unfold(x, kernel_, options_.dilation, options_.padding, options_.stride);
  }

 private:
  Dims kernel_;
  WindowOptions options_;
};

// Adds up columns [n, c * kh * kw, windows], each in its window of [n, c, output_size...].
class Fold : public Layer<Fold> {
 public:
  Fold(const Dims& output_size, const Dims& kernel, const WindowOptions& options = {})
      : size_(output_size), kernel_(kernel), options_(options) {}
  Tensor forward(const Tensor& x) const {
    return fold(x, size_, kernel_, options_.dilation, options_.padding, options_.stride);
  }

 private:
  Dims size_, kernel_;
  WindowOptions options_;
};

}  // namespace holon::nn
