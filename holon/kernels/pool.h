// Pooling over the last two axes of [n, c, h, w] arrays of any strides. Fast for float32 where channels (channels-last
// strides) or columns are adjacent in all arrays of a call; other layouts and types take plain loops.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

struct Pool2d {
  int64_t kernel[2] = {1, 1};
  int64_t stride[2] = {1, 1};
  int64_t padding[4] = {0, 0, 0, 0};  // top, left, bottom, right
  int64_t dilation[2] = {1, 1};       // maximum only
  bool count_include_pad = true;      // average only
  int64_t divisor = 0;                // average only: what sums are divided by; 0: the count
};

// The size of an output axis. Pre: the padded size holds one window.
int64_t pool_out_size(int64_t size, int64_t kernel, int64_t stride, int64_t pad_before, int64_t pad_after,
                      int64_t dilation, bool ceil_mode);

// out[n, c, oh, ow] = the window's maximum; NaN wins. index, if not nullptr, has out's shape and tells where the
// (first) maximum is: uint8: the place in the window, row-major (windows of at most 256); int64: the place in the
// plane, h * w. Every window must touch the input.
void max_pool2d(const Array& x, const Pool2d& pool, Array& out, Array* index = nullptr);
// dx = dy sent to the places that index (of either kind) names, zeros elsewhere.
void max_pool2d_backward(const Array& dy, const Array& index, const Pool2d& pool, Array& dx);
// out = x at the places that index (of either kind, of out's shape) names.
void max_pool2d_gather(const Array& x, const Array& index, const Pool2d& pool, Array& out);

// Floating types only.
void avg_pool2d(const Array& x, const Pool2d& pool, Array& out);
void avg_pool2d_backward(const Array& dy, const Pool2d& pool, Array& dx);

// Window i of k over an axis of n goes from floor(i * n / k) to ceil((i + 1) * n / k); k is out's size.
void adaptive_avg_pool2d(const Array& x, Array& out);
void adaptive_avg_pool2d_backward(const Array& dy, Array& dx);
// index: int64, the place in the plane; its gradient is max_pool2d_backward of any windows.
void adaptive_max_pool2d(const Array& x, Array& out, Array& index);

}  // namespace holon::kernels
