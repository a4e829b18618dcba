// Normalisation of channels: batch norm and group norm, with gradients. Channels are axis 1 of x.
//
// x, y, dy and dx have one floating dtype, one shape of at least two axes and any strides; row-major and channels-last
// ones are fastest. mean and rstd are float32 (float64 for float64 inputs), contiguous. weight and bias have one
// element for each channel and any floating dtype; they may be undefined.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

// out [2, channels], float64: the sums of x and of its squares. In double, so that they can be added up and subtracted.
void channel_moments(const Array& x, Array& out);
// out [2, channels], float64: the sums of dy and of dy (x - mean).
void channel_products(const Array& dy, const Array& x, const Array& mean, Array& out);
// y = (x - mean) rstd weight + bias.
void channel_normalize(const Array& x, const Array& mean, const Array& rstd, const Array& weight, const Array& bias,
                       Array& y);
// dx for statistics of `count` elements with the given products; count 0: the statistics are constants.
void channel_normalize_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd,
                                const Array& weight, const Array& products, double count, Array& dx);

// What a training step takes from the sums of channel_moments() over `count` elements: mean and rstd = 1 /
// sqrt(variance + eps), and the running statistics brought nearer to them by momentum, or the batch's own where there
// are none. Any floating dtypes; sums are contiguous.
void channel_statistics(const Array& sums, const Array& running_mean, const Array& running_var, double count,
                        double eps, double momentum, Array& mean, Array& rstd, Array& new_mean, Array& new_var);
// dweight and dbias from the sums of channel_products(). Any floating dtypes.
void channel_weight_gradients(const Array& products, const Array& rstd, Array& dweight, Array& dbias);

// The channels in groups of equal size, as many as mean and rstd [n, groups] say, which are outputs.
void group_norm(const Array& x, const Array& weight, const Array& bias, double eps, Array& y, Array& mean, Array& rstd);
void group_norm_backward(const Array& dy, const Array& x, const Array& mean, const Array& rstd, const Array& weight,
                         Array& dx, Array& dweight, Array& dbias);

}  // namespace holon::kernels
