// Pools: one number for each window of a signal, an image or a volume.
#pragma once

#include <optional>

#include "holon/nn/module.h"

namespace holon::nn {

// Sizes: one number, or one for each axis of the window.
struct MaxPoolOptions {
  Dims stride{};  // the kernel's sizes if empty
  Dims padding{0}, dilation{1};
  bool ceil_mode = false;
};

// The largest element of each window, over kAxes axes.
template <int kAxes>
class MaxPool : public Layer<MaxPool<kAxes>> {
 public:
  explicit MaxPool(const Dims& kernel, const MaxPoolOptions& options = {});
  // Of the same size along all axes.
  explicit MaxPool(int64_t kernel, const MaxPoolOptions& options = {}) : MaxPool(Dims{kernel}, options) {}
  Tensor forward(const Tensor& x) const;

 private:
  Dims kernel_, stride_, padding_, dilation_;
  bool ceil_mode_;
};
using MaxPool1d = MaxPool<1>;
using MaxPool2d = MaxPool<2>;
using MaxPool3d = MaxPool<3>;

struct MaxUnpoolOptions {
  Dims stride{};  // the kernel's sizes if empty
  Dims padding{0};
};

// Zeros with x at the places that a max pool gave as indices.
template <int kAxes>
class MaxUnpool : public Layer<MaxUnpool<kAxes>> {
 public:
  explicit MaxUnpool(const Dims& kernel, const MaxUnpoolOptions& options = {});
  // Of the same size along all axes.
  explicit MaxUnpool(int64_t kernel, const MaxUnpoolOptions& options = {}) : MaxUnpool(Dims{kernel}, options) {}
  // output_size: the sizes before the pool, where several have the same result.
  Tensor forward(const Tensor& x, const Tensor& indices, std::optional<Dims> output_size = {}) const;

 private:
  Dims kernel_, stride_, padding_;
};
using MaxUnpool1d = MaxUnpool<1>;
using MaxUnpool2d = MaxUnpool<2>;
using MaxUnpool3d = MaxUnpool<3>;

struct AvgPoolOptions {
  Dims stride{};  // the kernel's sizes if empty
  Dims padding{0};
  bool ceil_mode = false;
  bool count_include_pad = true;
  std::optional<int64_t> divisor_override{};  // in place of the window's size; not of signals
};

// The mean of each window, over kAxes axes.
template <int kAxes>
class AvgPool : public Layer<AvgPool<kAxes>> {
 public:
  explicit AvgPool(const Dims& kernel, const AvgPoolOptions& options = {});
  // Of the same size along all axes.
  explicit AvgPool(int64_t kernel, const AvgPoolOptions& options = {}) : AvgPool(Dims{kernel}, options) {}
  Tensor forward(const Tensor& x) const;

 private:
  Dims kernel_, stride_, padding_;
  bool ceil_mode_, count_include_pad_;
  std::optional<int64_t> divisor_override_;
};
using AvgPool1d = AvgPool<1>;
using AvgPool2d = AvgPool<2>;
using AvgPool3d = AvgPool<3>;

// Means of windows that give a result of the given sizes.
template <int kAxes>
class AdaptiveAvgPool : public Layer<AdaptiveAvgPool<kAxes>> {
 public:
  explicit AdaptiveAvgPool(const Dims& output_size);
  Tensor forward(const Tensor& x) const;

 private:
  Dims output_size_;
};
using AdaptiveAvgPool1d = AdaptiveAvgPool<1>;
using AdaptiveAvgPool2d = AdaptiveAvgPool<2>;
using AdaptiveAvgPool3d = AdaptiveAvgPool<3>;

// The largest elements of windows that give a result of the given sizes.
template <int kAxes>
class AdaptiveMaxPool : public Layer<AdaptiveMaxPool<kAxes>> {
 public:
  explicit AdaptiveMaxPool(const Dims& output_size);
  Tensor forward(const Tensor& x) const;

 private:
  Dims output_size_;
};
using AdaptiveMaxPool1d = AdaptiveMaxPool<1>;
using AdaptiveMaxPool2d = AdaptiveMaxPool<2>;
using AdaptiveMaxPool3d = AdaptiveMaxPool<3>;

}  // namespace holon::nn
