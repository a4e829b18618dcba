// Convolutions over the last two axes of [n, c, h, w] arrays with weights [o, c / groups, kh, kw], or the last three of
// [n, c, d, h, w], any strides. They are fastest where activations are channels-last in memory: float32 goes to oneDNN
// in that layout, and arrays of other strides are copied into it first. Other types take im2col and a product.
// One-dimensional convolutions have h == 1.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

struct Conv2d {
  int64_t stride[3] = {1, 1, 1};
  int64_t padding[6] = {0, 0, 0, 0, 0, 0};  // before each axis, then behind each: top, left, bottom, right
  int64_t dilation[3] = {1, 1, 1};
  int64_t groups = 1;
};

// The size of an output axis.
int64_t conv_out_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad_before, int64_t pad_after,
                      int64_t dilation);

// out[n, o, oh, ow] = the correlation of x with w, plus bias[o] if it is not nullptr.
void conv2d(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out);
// dx = the gradient of x for out's gradient dy.
void conv2d_backward_data(const Array& dy, const Array& w, const Conv2d& conv, Array& dx);
// dw and, if it is not nullptr, dbias for out's gradient dy.
void conv2d_backward_weights(const Array& dy, const Array& x, const Conv2d& conv, Array& dw, Array* dbias = nullptr);

// The same by im2col and products, for any type: what the others fall back on and are tested against.
void conv2d_plain(const Array& x, const Array& w, const Array* bias, const Conv2d& conv, Array& out);
void conv2d_backward_data_plain(const Array& dy, const Array& w, const Conv2d& conv, Array& dx);
void conv2d_backward_weights_plain(const Array& dy, const Array& x, const Conv2d& conv, Array& dw,
                                   Array* dbias = nullptr);

}  // namespace holon::kernels
