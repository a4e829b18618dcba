#include "holon/nn/pooling.h"

#include "holon/base/error.h"
#include "holon/nn/weights.h"
#include "holon/ops/pool.h"
#include "holon/ops/unpool.h"

namespace holon::nn {

template <int kAxes>
MaxPool<kAxes>::MaxPool(const Dims& kernel, const MaxPoolOptions& o)
    : kernel_(sizes_of(kernel, kAxes, "MaxPool", "kernel")),
      stride_(o.stride.empty() ? kernel_ : sizes_of(o.stride, kAxes, "MaxPool", "stride")),
      padding_(sizes_of(o.padding, kAxes, "MaxPool", "padding")),
      dilation_(sizes_of(o.dilation, kAxes, "MaxPool", "dilation")),
      ceil_mode_(o.ceil_mode) {}

template <int kAxes>
Tensor MaxPool<kAxes>::forward(const Tensor& x) const {
  if constexpr (kAxes == 1)
    return max_pool1d(x, kernel_, stride_, padding_, dilation_, ceil_mode_);
  else if constexpr (kAxes == 2)
    return max_pool2d(x, kernel_, stride_, padding_, dilation_, ceil_mode_);
  else
    return max_pool3d(x, kernel_, stride_, padding_, dilation_, ceil_mode_);
}

template <int kAxes>
AvgPool<kAxes>::AvgPool(const Dims& kernel, const AvgPoolOptions& o)
    : kernel_(sizes_of(kernel, kAxes, "AvgPool", "kernel")),
      stride_(o.stride.empty() ? kernel_ : sizes_of(o.stride, kAxes, "AvgPool", "stride")),
      padding_(sizes_of(o.padding, kAxes, "AvgPool", "padding")),
      ceil_mode_(o.ceil_mode),
      count_include_pad_(o.count_include_pad),
      divisor_override_(o.divisor_override) {
  if (kAxes == 1 && divisor_override_)
    fail_value("AvgPool1d: divisor_override is not supported in one dimension. Multiply the result.");
}

template <int kAxes>
Tensor AvgPool<kAxes>::forward(const Tensor& x) const {
  if constexpr (kAxes == 1)
    return avg_pool1d(x, kernel_, stride_, padding_, ceil_mode_, count_include_pad_);
  else if constexpr (kAxes == 2)
    return avg_pool2d(x, kernel_, stride_, padding_, ceil_mode_, count_include_pad_, divisor_override_);
  else
    return avg_pool3d(x, kernel_, stride_, padding_, ceil_mode_, count_include_pad_, divisor_override_);
}

template <int kAxes>
AdaptiveAvgPool<kAxes>::AdaptiveAvgPool(const Dims& output_size)
    : output_size_(sizes_of(output_size, kAxes, "AdaptiveAvgPool", "output_size")) {}

template <int kAxes>
Tensor AdaptiveAvgPool<kAxes>::forward(const Tensor& x) const {
  if constexpr (kAxes == 1)
    return adaptive_avg_pool1d(x, output_size_);
  else if constexpr (kAxes == 2)
    return adaptive_avg_pool2d(x, output_size_);
  else
    return adaptive_avg_pool3d(x, output_size_);
}

template <int kAxes>
AdaptiveMaxPool<kAxes>::AdaptiveMaxPool(const Dims& output_size)
    : output_size_(sizes_of(output_size, kAxes, "AdaptiveMaxPool", "output_size")) {}

template <int kAxes>
Tensor AdaptiveMaxPool<kAxes>::forward(const Tensor& x) const {
  if constexpr (kAxes == 1)
    return adaptive_max_pool1d(x, output_size_)[0];
  else if constexpr (kAxes == 2)
    return adaptive_max_pool2d(x, output_size_)[0];
  else
    return adaptive_max_pool3d(x, output_size_)[0];
}

template <int kAxes>
MaxUnpool<kAxes>::MaxUnpool(const Dims& kernel, const MaxUnpoolOptions& o)
    : kernel_(sizes_of(kernel, kAxes, "MaxUnpool", "kernel")),
      stride_(o.stride.empty() ? kernel_ : sizes_of(o.stride, kAxes, "MaxUnpool", "stride")),
      padding_(sizes_of(o.padding, kAxes, "MaxUnpool", "padding")) {}

template <int kAxes>
Tensor MaxUnpool<kAxes>::forward(const Tensor& x, const Tensor& indices, std::optional<Dims> output_size) const {
  if constexpr (kAxes == 1)
    return max_unpool1d(x, indices, kernel_, stride_, padding_, output_size);
  else if constexpr (kAxes == 2)
    return max_unpool2d(x, indices, kernel_, stride_, padding_, output_size);
  else
    return max_unpool3d(x, indices, kernel_, stride_, padding_, output_size);
}

template class MaxPool<1>;
template class MaxPool<2>;
template class MaxPool<3>;
template class MaxUnpool<1>;
template class MaxUnpool<2>;
template class MaxUnpool<3>;
template class AvgPool<1>;
template class AvgPool<2>;
template class AvgPool<3>;
template class AdaptiveAvgPool<1>;
template class AdaptiveAvgPool<2>;
template class AdaptiveAvgPool<3>;
template class AdaptiveMaxPool<1>;
template class AdaptiveMaxPool<2>;
template class AdaptiveMaxPool<3>;

}  // namespace holon::nn
