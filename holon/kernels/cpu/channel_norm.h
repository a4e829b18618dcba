// Normalisation of channels: batch norm and group norm, with gradients. Channels are axis 1 of x.
//
// x, y, dy and dx have one floating dtype, one shape of at least two axes and any strides; row-major and channels-last ones are
// fastest. mean and rstd are float32 (float64 for float64 inputs), contiguous. weight and bias have one element for each channel
// and any floating dtype; they may be undefined.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// out [2, channels], float64: the sums of x and of its squares. In double, so that they can be added up and subtracted.
void channel_moments(const Array& x, Array& out);
// out [2, channels], float64: the sums of dy and of dy (x - mean).
void channel_products(const Array& dy, const Array& x, const Array& mean, Array& out);
// y = (x - mean) rstd weight + bias.
void channel_normalize(const Array& x, const Array& mean, const Array& rstd, const Array& weight, const Array& bias, Array& y);
// dx for statistics of `count` elements with the given products; count 0: the statistics are constants.
void channel_normalize_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd, const Array& weight,
                                const Array& products, double count, Array& dx);

// The channels in groups of equal size, as many as mean and rstd [n, groups] say, which are outputs.
void group_norm(const Array& x, const Array& weight, const Array& bias, double eps, Array& y, Array& mean, Array& rstd);
void group_norm_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd, const Array& weight, Array& dx,
                         Array& dweight, Array& dbias);

}  // namespace holon::kernels
