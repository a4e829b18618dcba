// Convolutions over two axes as ones over three with a depth of 1.
#pragma once

#include "holon/array/array.h"
#include "holon/kernels/conv.h"

namespace holon::kernels::detail {

struct ConvShape {
  int64_t n, c, o, groups, in[3], kernel[3], out[3];
  int64_t inner() const { return c / groups * kernel[0] * kernel[1] * kernel[2]; }
  int64_t places() const { return out[0] * out[1] * out[2]; }
};

// [n, c, h, w] as [n, c, 1, h, w].
inline Array with_depth(const Array& x) {
  if (x.ndim() == 5) return x;
  Dims shape = x.shape, strides = x.strides;
  shape.insert(2, 1);
  strides.insert(2, 0);
  return x.view(shape, strides);
}

inline Conv2d with_depth(const Conv2d& conv, int ndim) {
  if (ndim == 5) return conv;
  const int64_t *s = conv.stride, *p = conv.padding, *d = conv.dilation;
  return {{1, s[0], s[1]}, {0, p[0], p[1], 0, p[2], p[3]}, {1, d[0], d[1]}, conv.groups};
}

inline ConvShape shape_of(const Array& x, const Array& w, const Array& out, const Conv2d& conv) {
  ConvShape s{x.shape[0], x.shape[1], out.shape[1], conv.groups, {}, {}, {}};
  for (int i = 0; i < 3; ++i) s.in[i] = x.shape[2 + i], s.kernel[i] = w.shape[2 + i], s.out[i] = out.shape[2 + i];
  return s;
}

}  // namespace holon::kernels::detail
