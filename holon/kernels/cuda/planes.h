// Windows over the last two axes of [n, c, h, w] arrays, and the order in which threads take elements.
#pragma once

#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/pool.h"

namespace holon::kernels::cuda {

struct Strides4 {
  int64_t n, c, h, w;
  explicit Strides4(const Array& a) : n(a.strides[0]), c(a.strides[1]), h(a.strides[2]), w(a.strides[3]) {}
  HOLON_BOTH int64_t plane(int64_t image, int64_t channel) const { return image * n + channel * c; }
  HOLON_BOTH int64_t at(int64_t row, int64_t col) const { return row * h + col * w; }
};

// Numbers of elements as coordinates: along the columns first, or along the channels where these are adjacent.
struct Order4 {
  int64_t count, c, h, w;
  bool channels_first, small;
  Divider by_c, by_h, by_w;

  explicit Order4(const Array& a) : Order4(a.shape, a.strides[1] == 1 && a.shape[1] > 1) {}
  Order4(const Dims& shape, bool channels_first)
      : count(shape.numel()),
        c(shape[1]),
        h(shape[2]),
        w(shape[3]),
        channels_first(channels_first),
        small(count < (int64_t{1} << 31)) {
    if (!small || count == 0) return;
    by_c = Divider(static_cast<uint32_t>(c));
    by_h = Divider(static_cast<uint32_t>(h));
    by_w = Divider(static_cast<uint32_t>(w));
  }

  struct At {
    int64_t n, c, h, w;
  };
  HOLON_BOTH At at(int64_t i) const {
    At p;
    if (channels_first) {
      i = split(i, c, by_c, &p.c);
      i = split(i, w, by_w, &p.w);
      p.n = split(i, h, by_h, &p.h);
    } else {
      i = split(i, w, by_w, &p.w);
      i = split(i, h, by_h, &p.h);
      p.n = split(i, c, by_c, &p.c);
    }
    return p;
  }

 private:
  HOLON_BOTH int64_t split(int64_t i, int64_t size, const Divider& by, int64_t* rest) const {
    const int64_t q = small ? static_cast<int64_t>(by.quotient(static_cast<uint32_t>(i))) : i / size;
    *rest = i - q * size;
    return q;
  }
};

// One window along one axis, cut to the input: places start, start + step, ... of which the first is number `first` of
// the window.
struct Span {
  int64_t start, first, count, divisor;
};

// The windows along one axis.
struct Windows {
  int64_t size, out;  // of the input and of the output
  int64_t kernel = 1, stride = 1, before = 0, after = 0, step = 1;
  int64_t divisor = 0;  // of an average, where it is given
  bool adaptive = true, count_pad = false;

  // Window i of `out` goes from floor(i size / out) to ceil((i + 1) size / out).
  Windows(int64_t size, int64_t out) : size(size), out(out) {}
  Windows(const Pool2d& p, int axis, int64_t size, int64_t out)
      : size(size),
        out(out),
        kernel(p.kernel[axis]),
        stride(p.stride[axis]),
        before(p.padding[axis]),
        after(p.padding[axis + 2]),
        step(p.dilation[axis]),
        divisor(p.divisor ? (axis == 0 ? p.divisor : 1) : 0),
        adaptive(false),
        count_pad(p.count_include_pad) {}

  HOLON_BOTH Span span(int64_t o) const {
    if (adaptive) {
      const int64_t start = o * size / out, end = ((o + 1) * size + out - 1) / out;
      return {start, 0, end - start, end - start};
    }
    const int64_t at = o * stride - before;
    const int64_t first = at < 0 ? (-at + step - 1) / step : 0;
    const int64_t inside = size > at ? (size - at + step - 1) / step : 0;
    const int64_t count = (inside < kernel ? inside : kernel) - first;
    const int64_t padded = (at + kernel < size + after ? at + kernel : size + after) - at;
    const int64_t by = divisor ? divisor : count_pad ? padded : count;
    return {at + first * step, first, count > 0 ? count : 0, by > 1 ? by : 1};
  }

  // The windows that may hold place x: [begin, end). With a dilation some of them do not: see place().
  HOLON_BOTH int64_t begin(int64_t x) const {
    if (adaptive) return x * out / size;
    const int64_t t = x + before - (kernel - 1) * step;
    return t <= 0 ? 0 : (t + stride - 1) / stride;
  }
  HOLON_BOTH int64_t end(int64_t x) const {
    const int64_t e = adaptive ? ((x + 1) * out - 1) / size + 1 : (x + before) / stride + 1;
    return e < out ? e : out;
  }
  // Which place of window o is x; -1: none. Of an adaptive window 0.
  HOLON_BOTH int64_t place(int64_t x, int64_t o) const {
    if (adaptive) return 0;
    if (step == 1) return x + before - o * stride;
    const int64_t t = x + before - o * stride;
    return t % step ? -1 : t / step;
  }
};

}  // namespace holon::kernels::cuda
