// Padding, resampling along an axis, and windows as columns. Arrays of a call have one dtype and any strides.
#pragma once

#include <vector>

#include "holon/array/array.h"
#include "holon/array/scalar.h"

namespace holon::kernels {

// out = x at its place `before` (of each axis; negative: that many elements are cut off), value elsewhere.
void pad_constant(const Array& x, const Dims& before, Scalar value, Array& out);

// Each element of the result is a sum of `taps` weighted elements of the input; one tap has the weight 1.
struct Taps {
  int taps = 1;
  std::vector<int64_t> index;  // taps for each element of the result
  std::vector<double> weight;  // empty for one tap
};
// Along the axis, whose size in out is index.size() / taps. More than one tap: floating types only.
void resample(const Array& x, int axis, const Taps& taps, Array& out);
// The transpose: dx = 0, then each element of dy is added to where its taps are.
void resample_backward(const Array& dy, int axis, const Taps& taps, Array& dx);

struct Window2d {
  int64_t kernel[2], stride[2], padding[2], dilation[2];
};
// x [n, c, h, w] -> out [n, c kh kw, places]: the elements of each window; places are counted row by row.
void im2col(const Array& x, const Window2d& window, Array& out);
// The transpose: columns are added up into x of the given shape.
void col2im(const Array& columns, const Window2d& window, Array& x);

}  // namespace holon::kernels
