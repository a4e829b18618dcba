// Convolutions of groups of few channels, depthwise ones above all, from their definition: a matrix of windows would be
// written and read for products that have hardly an inner axis.
#pragma once

#include "holon/kernels/conv.h"
#include "holon/kernels/cuda/strides.h"

namespace holon::kernels::cuda {

// A size that element numbers are divided by.
struct Axis {
  int64_t size = 1;
  Divider divider;
  Axis() = default;
  explicit Axis(int64_t n) : size(n), divider(n > 0 && n < (int64_t{1} << 31) ? static_cast<uint32_t>(n) : 1) {}
  // The remainder; i becomes the quotient. small: i < 2^31.
  HOLON_BOTH int64_t split(int64_t& i, bool small) const {
    if (small) {
      const auto n = static_cast<uint32_t>(i);
      const uint32_t q = divider.quotient(n);
      i = q;
      return n - q * divider.d;
    }
    const int64_t q = i / size, r = i - q * size;
    i = q;
    return r;
  }
};

// [n, c, h, w] as [n, c, 1, h, w].
inline Array with_depth(const Array& x) {
  if (x.ndim() == 5) return x;
  Dims shape = x.shape, strides = x.strides;
  shape.insert(2, 1);
  strides.insert(2, 0);
  return x.view(shape, strides);
}

// Whether these are the quicker way for a weight [o, c / groups, ...], activations x and results y.
bool direct_fits(const Array& w, const Conv2d& conv, const Array& x, const Array& y);

// As kernels::conv2d and its gradients, for any strides. Sums are of one order, whatever the device. Pre:
// direct_fits(); a floating dtype; no array is empty.
void direct_forward(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& y);
void direct_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx);
void direct_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias);

}  // namespace holon::kernels::cuda
