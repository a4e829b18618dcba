// Pooling over the last one, two or three axes of [n, c, ...]. The kernels know two: one is two with a height of 1,
// three are two passes, since the windows are products. Windows are whole; batch and channels split.
#include "holon/kernels/pool.h"
#include "holon/internal_ops/pool.h"
#include "holon/ops/create.h"

#include <cmath>

#include "holon/base/index.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/pool.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/windows.h"

namespace holon::ops {
namespace {

kernels::Pool2d pool_of(const AttrReader& c) {
  kernels::Pool2d p;
  for (int i = 0; i < 2; ++i) {
    size_t k = to_size(i);
    p.kernel[i] = c.ints("kernel_size"_attr)[k];
    p.stride[i] = c.ints("stride"_attr)[k];
    p.padding[i] = p.padding[i + 2] = c.ints("padding"_attr)[k];
  }
  return p;
}
kernels::Pool2d max_pool_of(const AttrReader& c) {
  kernels::Pool2d p = pool_of(c);
  for (size_t i = 0; i < 2; ++i) p.dilation[i] = c.ints("dilation"_attr)[i];
  return p;
}
kernels::Pool2d avg_pool_of(const AttrReader& c) {
  kernels::Pool2d p = pool_of(c);
  p.count_include_pad = c.b("count_include_pad"_attr);
  p.divisor = c.i("divisor"_attr);
  return p;
}

Dims out_shape(const Infer& c, const kernels::Pool2d& p) {
  Dims out{c.shape(0)[0], c.shape(0)[1]};
  for (int i = 0; i < 2; ++i)
    out.push_back(kernels::pool_out_size(c.shape(0)[2 + i], p.kernel[i], p.stride[i], p.padding[i], p.padding[i],
                                         p.dilation[i], c.b("ceil_mode"_attr)));
  return out;
}

// The attributes of a pool over n axes, checked.
struct Windows {
  int n;
  Dims kernel, stride, padding, dilation;
  // Of the axes [first, first + count) as the two that the kernels know.
  Dims two(const Dims& v, int first, int count, int64_t neutral) const {
    return count == 2 ? Dims{v[first], v[first + 1]} : Dims{neutral, v[first]};
  }
};

void require_axes(const BodyCall& c, int n) {
  const Tensor& x = c.in(0);
  if (x.ndim() != n + 2 && x.ndim() != n + 1)
    fail_value("{}: x is {}; it takes {} axes, or {} without the batch. Add one by unsqueeze().", c.op().name(),
               x.shape(), n + 2, n + 1);
  if (!is_floating(x.dtype()))
    fail_type("{}: x is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).", c.op().name(),
              name(x.dtype()));
}

Windows windows_of(const BodyCall& c, int n, bool dilated) {
  require_axes(c, n);
  const Tensor& x = c.in(0);
  const char* op = c.op().name();
  Windows w{n,
            per_axis(c, "kernel_size"_attr, n, 1),
            {},
            per_axis(c, "padding"_attr, n, 0),
            dilated ? per_axis(c, "dilation"_attr, n, 1) : Dims::filled(n, 1)};
  w.stride = c.has("stride"_attr) && !c.ints("stride"_attr).empty() ? per_axis(c, "stride"_attr, n, 1) : w.kernel;
  for (int i = 0; i < n; ++i) {
    if (2 * w.padding[i] > w.kernel[i])
      fail_value("{}: padding {} is more than half of the kernel {}. Use less.", op, w.padding, w.kernel);
    if (x.size(i - n) + 2 * w.padding[i] < w.dilation[i] * (w.kernel[i] - 1) + 1)
      fail_value("{}: the kernel {} is larger than the padded input: x is {}, padding {}. Use a smaller one.", op,
                 w.kernel, x.shape(), w.padding);
    // Then the places of the first window are all before x or behind it.
    if (dilated && w.padding[i] > 0 && x.size(i - n) < w.dilation[i])
      fail_value("{}: the first window has no element of x: x is {}, padding {}, dilation {}. Use less padding or a "
                 "smaller dilation.",
                 op, x.shape(), w.padding, w.dilation);
  }
  return w;
}

// x with a batch, and one axis as two.
Tensor batched(const Tensor& x, int n) {
  Tensor t = x.ndim() == n + 1 ? unsqueeze(x, 0) : x;
  return n == 1 ? unsqueeze(t, 2) : t;
}
Tensor as_given(Tensor y, const Tensor& x, int n) {
  if (n == 1) y = squeeze(y, Dims{2});
  return x.ndim() == n + 1 ? squeeze(y, Dims{0}) : y;
}

// [n, c, d, h, w] as [n, c d, h, w], and [n, c, d, h, w] as [n, c, d, h w].
Tensor planes(const Tensor& x) {
  return reshape(x, {x.shape()[0], x.shape()[1] * x.shape()[2], x.shape()[3], x.shape()[4]});
}
Tensor columns(const Tensor& x, const Dims& s) { return reshape(x, {s[0], s[1], s[2], x.shape()[2] * x.shape()[3]}); }
Tensor whole(const Tensor& y, const Dims& s, int64_t h, int64_t w) {
  return reshape(y, {s[0], s[1], y.shape()[2], h, w});
}

// The largest values, and their places in [d, h, w] if requested.
std::array<Tensor, 2> max_windows(const BodyCall& c, int n, bool indices) {
  Windows w = windows_of(c, n, true);
  bool ceil = c.b("ceil_mode"_attr);
  Tensor x = batched(c.in(0), n);
  int first = n == 3 ? 1 : 0, count = n == 1 ? 1 : 2;
  // Places cost time and memory; without gradient nobody reads them.
  if (n == 2 && !indices && !(x.requires_grad() && grad_enabled()))
    return {as_given(max_pool2d_values(x, w.two(w.kernel, 0, 2, 1), w.two(w.stride, 0, 2, 1), w.two(w.padding, 0, 2, 0),
                                       w.two(w.dilation, 0, 2, 1), ceil),
                     c.in(0), n),
            Tensor()};
  auto pool = [&](const Tensor& t, int from, int axes) {
    return max_pool2d_index(t, w.two(w.kernel, from, axes, 1), w.two(w.stride, from, axes, 1),
                            w.two(w.padding, from, axes, 0), w.two(w.dilation, from, axes, 1), ceil, indices);
  };
  if (n < 3) {
    auto y = pool(x, first, count);
    return {as_given(y[0], c.in(0), n), indices ? as_given(y[1], c.in(0), n) : Tensor()};
  }
  auto flat = pool(planes(x), 1, 2);
  int64_t oh = flat[0].shape()[2], ow = flat[0].shape()[3];
  auto deep = max_pool2d_index(columns(flat[0], x.shape()), {w.kernel[0], 1}, {w.stride[0], 1}, {w.padding[0], 0},
                               {w.dilation[0], 1}, ceil, indices);
  Tensor y = whole(deep[0], x.shape(), oh, ow);
  if (!indices) return {as_given(y, c.in(0), n), Tensor()};
  // The place in the depth, and at that depth the place in the plane.
  Dims lead{x.shape()[0], x.shape()[1], -1};
  Tensor at = reshape(deep[1], lead), in_plane = gather(reshape(flat[1], lead), 2, at);
  Tensor place = add(mul(floor_divide(at, oh * ow), x.shape()[3] * x.shape()[4]), in_plane);
  return {as_given(y, c.in(0), n), as_given(reshape(place, y.shape()), c.in(0), n)};
}

void avg_body(BodyCall& c, int n) {
  Windows w = windows_of(c, n, false);
  bool ceil = c.b("ceil_mode"_attr), pad = c.b("count_include_pad"_attr);
  int64_t divisor = n > 1 && c.has("divisor_override"_attr) ? c.i("divisor_override"_attr) : 0;
  if (n > 1 && c.has("divisor_override"_attr) && divisor < 1)
    fail_value("{}: divisor_override is {}; it must be positive.", c.op().name(), divisor);
  Tensor x = batched(c.in(0), n);
  auto pool = [&](const Tensor& t, int from, int axes, int64_t by) {
    return avg_pool2d_windows(t, w.two(w.kernel, from, axes, 1), w.two(w.stride, from, axes, 1),
                              w.two(w.padding, from, axes, 0), ceil, pad, by);
  };
  if (n < 3) {
    c.out.push_back(as_given(pool(x, 0, n, divisor), c.in(0), n));
    return;
  }
  Tensor flat = pool(planes(x), 1, 2, divisor ? 1 : 0);
  Tensor deep = avg_pool2d_windows(columns(flat, x.shape()), {w.kernel[0], 1}, {w.stride[0], 1}, {w.padding[0], 0},
                                   ceil, pad, divisor);
  c.out.push_back(as_given(whole(deep, x.shape(), flat.shape()[2], flat.shape()[3]), c.in(0), n));
}

Dims output_size(const BodyCall& c, int n) {
  require_axes(c, n);
  Dims size = per_axis(c, "output_size"_attr, n, 1);
  for (int i = 0; i < n; ++i)
    if (c.in(0).size(i - n) == 0)
      fail_value("{}: x is {}: its windows have no elements. Check the shape first.", c.op().name(), c.in(0).shape());
  return size;
}

void adaptive_avg_body(BodyCall& c, int n) {
  Dims size = output_size(c, n);
  Tensor x = batched(c.in(0), n);
  if (n < 3) {
    c.out.push_back(as_given(adaptive_avg_windows(x, n == 1 ? Dims{1, size[0]} : size), c.in(0), n));
    return;
  }
  Tensor flat = adaptive_avg_windows(planes(x), {size[1], size[2]});
  c.out.push_back(as_given(whole(adaptive_avg_windows(columns(flat, x.shape()), {size[0], size[1] * size[2]}),
                                 x.shape(), size[1], size[2]),
                           c.in(0), n));
}

void adaptive_max_body(BodyCall& c, int n) {
  Dims size = output_size(c, n);
  Tensor x = batched(c.in(0), n);
  if (n < 3) {
    for (auto& t : adaptive_max_windows(x, n == 1 ? Dims{1, size[0]} : size)) c.out.push_back(as_given(t, c.in(0), n));
    return;
  }
  auto flat = adaptive_max_windows(planes(x), {size[1], size[2]});
  auto deep = adaptive_max_windows(columns(flat[0], x.shape()), {size[0], size[1] * size[2]});
  Dims lead{x.shape()[0], x.shape()[1], -1};
  Tensor at = reshape(deep[1], lead), in_plane = gather(reshape(flat[1], lead), 2, at);
  Tensor place = add(mul(floor_divide(at, size[1] * size[2]), x.shape()[3] * x.shape()[4]), in_plane);
  Tensor y = whole(deep[0], x.shape(), size[1], size[2]);
  c.out.push_back(as_given(y, c.in(0), n));
  c.out.push_back(as_given(reshape(place, y.shape()), c.in(0), n));
}

// The p-norm of each window: that of the mean, times the window's size.
Tensor lp_body(const BodyCall& c, int n) {
  double p = c.f("norm_type"_attr);
  if (!(p > 0) || std::isinf(p)) fail_value("{}: norm_type is {}; it must be positive and finite.", c.op().name(), p);
  require_axes(c, n);
  const Tensor& x = c.in(0);
  Dims kernel = per_axis(c, "kernel_size"_attr, n, 1);
  std::optional<Dims> stride;
  if (c.has("stride"_attr) && !c.ints("stride"_attr).empty()) stride = per_axis(c, "stride"_attr, n, 1);
  double size = 1;
  for (int64_t k : kernel) size *= static_cast<double>(k);
  Tensor powers = pow(x, p);
  Tensor mean = n == 1 ? avg_pool1d(powers, kernel, stride, {0}, c.b("ceil_mode"_attr))
                       : avg_pool2d(powers, kernel, stride, {0, 0}, c.b("ceil_mode"_attr));
  return pow(mul(relu(mean), size), 1 / p);
}

}  // namespace

HOLON_OP(max_pool1d,
         "max_pool1d(Tensor x, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, int[1] dilation=1, bool "
         "ceil_mode=False) -> Tensor")
    .doc("The largest value of each window of x [n, c, l]; stride is kernel_size unless given.",
         "max_pool1d(ones(1, 2, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(max_windows(c, 1, false)[0]); });
HOLON_OP(max_pool2d,
         "max_pool2d(Tensor x, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, int[2] dilation=1, bool "
         "ceil_mode=False) -> Tensor")
    .doc("The largest value of each window of x [n, c, h, w]; stride is kernel_size unless given.",
         "max_pool2d(ones(1, 2, 4, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(max_windows(c, 2, false)[0]); });
HOLON_OP(max_pool3d,
         "max_pool3d(Tensor x, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, int[3] dilation=1, bool "
         "ceil_mode=False) -> Tensor")
    .doc("The largest value of each window of x [n, c, d, h, w]; stride is kernel_size unless given.",
         "max_pool3d(ones(1, 2, 4, 4, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(max_windows(c, 3, false)[0]); });
HOLON_OP(max_pool1d_with_indices,
         "max_pool1d_with_indices(Tensor x, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, int[1] "
         "dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)")
    .doc("max_pool1d, and the index of each maximum along the axis.", "max_pool1d_with_indices(ones(1, 2, 4), 2)[1]")
    .function_only()
    .body([](BodyCall& c) {
      for (auto& t : max_windows(c, 1, true)) c.out.push_back(t);
    });
HOLON_OP(max_pool2d_with_indices,
         "max_pool2d_with_indices(Tensor x, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, int[2] "
         "dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)")
    .doc("max_pool2d of x [n, c, h, w], and the index of each maximum in its plane, counted row by row.",
         "max_pool2d_with_indices(ones(1, 2, 4, 4), 2)[1]")
    .function_only()
    .body([](BodyCall& c) {
      for (auto& t : max_windows(c, 2, true)) c.out.push_back(t);
    });
HOLON_OP(max_pool3d_with_indices,
         "max_pool3d_with_indices(Tensor x, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, int[3] "
         "dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)")
    .doc("max_pool3d of x [n, c, d, h, w], and the index of each maximum in its volume, counted row by row.",
         "max_pool3d_with_indices(ones(1, 2, 4, 4, 4), 2)[1].shape")
    .function_only()
    .body([](BodyCall& c) {
      for (auto& t : max_windows(c, 3, true)) c.out.push_back(t);
    });

HOLON_OP(max_pool2d_index,
         "max_pool2d_index(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool "
         "ceil_mode, bool in_plane) -> (Tensor, Tensor)")
    .doc("max_pool2d with the index of each maximum: in its window (uint8), or in its plane (int64) if requested or if "
         "windows are large.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims out = out_shape(c, max_pool_of(c));
      c.out(out, c.dtype_of(0));
      c.out(out,
            !c.b("in_plane"_attr) && c.ints("kernel_size"_attr)[0] * c.ints("kernel_size"_attr)[1] <= 256 ? uint8
                                                                                                          : int64);
    })
    .rule("n c H W -> n c I J, n c I J")
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::max_pool2d(c.in(0), max_pool_of(c), c.out(0), &c.out(1)); })
    .saves({}, {1})
    .grad([](Grad& g) {
      g.dx(0,
           max_pool2d_backward(g.dy(), g.y(1), Dims(g.ints("kernel_size"_attr)), Dims(g.ints("stride"_attr)),
                               Dims(g.ints("padding"_attr)), Dims(g.ints("dilation"_attr)), g.in_shape()));
    });
HOLON_OP(max_pool2d_values,
         "max_pool2d_values(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool "
         "ceil_mode) -> Tensor")
    .doc("max_pool2d without the indices.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.out(out_shape(c, max_pool_of(c)), c.dtype_of(0));
    })
    .rule("n c H W -> n c I J")
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::max_pool2d(c.in(0), max_pool_of(c), c.out()); });
HOLON_OP(max_pool2d_backward,
         "max_pool2d_backward(Tensor dy, Tensor index, int[2] kernel_size, int[2] stride, int[2] padding, int[2] "
         "dilation, int[] shape) -> Tensor")
    .doc("Gradient of max_pool2d.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule("n c H W, n c H W -> n c I J")
    .linear_in({0})
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::max_pool2d_backward(c.in(0), c.in(1), max_pool_of(c), c.out()); })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0))
        g.dx(0,
             max_pool2d_gather(g.dy(), g.x(1), Dims(g.ints("kernel_size"_attr)), Dims(g.ints("stride"_attr)),
                               Dims(g.ints("padding"_attr)), Dims(g.ints("dilation"_attr))));
    });
HOLON_OP(
    max_pool2d_gather,
    "max_pool2d_gather(Tensor x, Tensor index, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation) "
    "-> Tensor")
    .doc("The elements of x at the places of max_pool2d's maxima: the gradient of its gradient.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.ndim(0) == 4 && c.ndim(1) == 4 && c.shape(0)[0] == c.shape(1)[0] && c.shape(0)[1] == c.shape(1)[1],
                "x and index do not match", "It is internal to max_pool2d: call that one.");
      c.out(c.shape(1), c.dtype_of(0));
    })
    .rule("n c H W, n c I J -> n c I J")
    .linear_in({0})
    .kernel([](KernelCall& c) { kernels::max_pool2d_gather(c.in(0), c.in(1), max_pool_of(c), c.out()); })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0))
        g.dx(0,
             max_pool2d_backward(g.dy(), g.x(1), Dims(g.ints("kernel_size"_attr)), Dims(g.ints("stride"_attr)),
                                 Dims(g.ints("padding"_attr)), Dims(g.ints("dilation"_attr)), g.in_shape(0)));
    });

HOLON_OP(avg_pool1d,
         "avg_pool1d(Tensor x, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, bool ceil_mode=False, bool "
         "count_include_pad=True) -> Tensor")
    .doc("The mean of each window of x [n, c, l]; stride is kernel_size unless given.",
         "avg_pool1d(ones(1, 2, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) { avg_body(c, 1); });
HOLON_OP(avg_pool2d,
         "avg_pool2d(Tensor x, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, bool ceil_mode=False, bool "
         "count_include_pad=True, int? divisor_override=None) -> Tensor")
    .doc("The mean of each window of x [n, c, h, w], padding counts unless count_include_pad is False; stride is "
         "kernel_size unless given; divisor_override replaces the count as the divisor.",
         "avg_pool2d(ones(1, 2, 4, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) { avg_body(c, 2); });
HOLON_OP(avg_pool3d,
         "avg_pool3d(Tensor x, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, bool ceil_mode=False, bool "
         "count_include_pad=True, int? divisor_override=None) -> Tensor")
    .doc("The mean of each window of x [n, c, d, h, w], as avg_pool2d.", "avg_pool3d(ones(1, 2, 4, 4, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) { avg_body(c, 3); });
HOLON_OP(avg_pool2d_windows,
         "avg_pool2d_windows(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool "
         "count_include_pad, int divisor) -> Tensor")
    .doc("The mean of each window; divisor 0: by its count.")
    .hidden()
    .infer([](Infer& c) { c.out(out_shape(c, avg_pool_of(c)), c.dtype_of(0)); })
    .rule("n c H W -> n c I J")
    .linear()
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::avg_pool2d(c.in(0), avg_pool_of(c), c.out()); })
    .grad([](Grad& g) {
      g.dx(0,
           avg_pool2d_backward(g.dy(), Dims(g.ints("kernel_size"_attr)), Dims(g.ints("stride"_attr)),
                               Dims(g.ints("padding"_attr)), g.b("ceil_mode"_attr), g.b("count_include_pad"_attr),
                               g.i("divisor"_attr), g.in_shape()));
    });
HOLON_OP(avg_pool2d_backward,
         "avg_pool2d_backward(Tensor dy, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool "
         "count_include_pad, int divisor, int[] shape) -> Tensor")
    .doc("Gradient of avg_pool2d_windows.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule("n c H W -> n c I J")
    .linear()
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::avg_pool2d_backward(c.in(0), avg_pool_of(c), c.out()); })
    .grad([](Grad& g) {
      g.dx(0,
           avg_pool2d_windows(g.dy(), Dims(g.ints("kernel_size"_attr)), Dims(g.ints("stride"_attr)),
                              Dims(g.ints("padding"_attr)), g.b("ceil_mode"_attr), g.b("count_include_pad"_attr),
                              g.i("divisor"_attr)));
    });

HOLON_OP(adaptive_avg_pool1d, "adaptive_avg_pool1d(Tensor x, int[1] output_size) -> Tensor")
    .doc("The means of output_size windows, as equal as they can be, of x [n, c, l].",
         "adaptive_avg_pool1d(ones(1, 2, 5), 2).shape")
    .function_only()
    .body([](BodyCall& c) { adaptive_avg_body(c, 1); });
HOLON_OP(adaptive_avg_pool2d, "adaptive_avg_pool2d(Tensor x, int[2] output_size) -> Tensor")
    .doc("The means of windows, as equal as they can be, of x [n, c, h, w].",
         "adaptive_avg_pool2d(ones(1, 2, 5, 5), 2).shape")
    .function_only()
    .body([](BodyCall& c) { adaptive_avg_body(c, 2); });
HOLON_OP(adaptive_avg_pool3d, "adaptive_avg_pool3d(Tensor x, int[3] output_size) -> Tensor")
    .doc("The means of windows, as equal as they can be, of x [n, c, d, h, w].",
         "adaptive_avg_pool3d(ones(1, 2, 5, 5, 5), 2).shape")
    .function_only()
    .body([](BodyCall& c) { adaptive_avg_body(c, 3); });
HOLON_OP(adaptive_avg_windows, "adaptive_avg_windows(Tensor x, int[2] output_size) -> Tensor")
    .doc("adaptive_avg_pool2d of [n, c, h, w].")
    .hidden()
    .infer([](Infer& c) {
      c.out({c.shape(0)[0], c.shape(0)[1], c.ints("output_size"_attr)[0], c.ints("output_size"_attr)[1]},
            c.dtype_of(0));
    })
    .rule("n c H W -> n c I J")
    .linear()
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::adaptive_avg_pool2d(c.in(0), c.out()); })
    .grad([](Grad& g) { g.dx(0, adaptive_avg_backward(g.dy(), g.in_shape())); });
HOLON_OP(adaptive_avg_backward, "adaptive_avg_backward(Tensor dy, int[] shape) -> Tensor")
    .doc("Gradient of adaptive_avg_windows.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule("n c H W -> n c I J")
    .linear()
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::adaptive_avg_pool2d_backward(c.in(0), c.out()); })
    .grad([](Grad& g) {
      g.dx(0, adaptive_avg_windows(g.dy(), {g.in_shape()[2], g.in_shape()[3]}));
    });

HOLON_OP(adaptive_max_pool1d, "adaptive_max_pool1d(Tensor x, int[1] output_size) -> (Tensor, Tensor)")
    .doc("The largest values of output_size windows, as equal as they can be, of x [n, c, l], and their indices.",
         "adaptive_max_pool1d(ones(1, 2, 5), 2)[0].shape")
    .function_only()
    .body([](BodyCall& c) { adaptive_max_body(c, 1); });
HOLON_OP(adaptive_max_pool2d, "adaptive_max_pool2d(Tensor x, int[2] output_size) -> (Tensor, Tensor)")
    .doc("The largest values of windows, as equal as they can be, of x [n, c, h, w], and their indices in the planes.",
         "adaptive_max_pool2d(ones(1, 2, 5, 5), 2)[0].shape")
    .function_only()
    .body([](BodyCall& c) { adaptive_max_body(c, 2); });
HOLON_OP(adaptive_max_pool3d, "adaptive_max_pool3d(Tensor x, int[3] output_size) -> (Tensor, Tensor)")
    .doc("The largest values of windows, as equal as they can be, of x [n, c, d, h, w], and their indices in the "
         "volumes.",
         "adaptive_max_pool3d(ones(1, 2, 5, 5, 5), 2)[0].shape")
    .function_only()
    .body([](BodyCall& c) { adaptive_max_body(c, 3); });
HOLON_OP(adaptive_max_windows, "adaptive_max_windows(Tensor x, int[2] output_size) -> (Tensor, Tensor)")
    .doc("adaptive_max_pool2d of [n, c, h, w].")
    .hidden()
    .infer([](Infer& c) {
      Dims out{c.shape(0)[0], c.shape(0)[1], c.ints("output_size"_attr)[0], c.ints("output_size"_attr)[1]};
      c.out(out, c.dtype_of(0));
      c.out(out, int64);
    })
    .rule("n c H W -> n c I J, n c I J")
    .layout(Layout::kLikeInput)
    .kernel([](KernelCall& c) { kernels::adaptive_max_pool2d(c.in(0), c.out(0), c.out(1)); })
    .saves({}, {1})
    .grad([](Grad& g) {
      g.dx(0, max_pool2d_backward(g.dy(), g.y(1), {1, 1}, {1, 1}, {0, 0}, {1, 1}, g.in_shape()));
    });

HOLON_OP(
    lp_pool1d,
    "lp_pool1d(Tensor x, float norm_type, int[1] kernel_size, int[1]? stride=None, bool ceil_mode=False) -> Tensor")
    .doc("The norm of order norm_type of each window of x [n, c, l].", "lp_pool1d(ones(1, 2, 4), 2.0, 2)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(lp_body(c, 1)); });
HOLON_OP(
    lp_pool2d,
    "lp_pool2d(Tensor x, float norm_type, int[2] kernel_size, int[2]? stride=None, bool ceil_mode=False) -> Tensor")
    .doc("The norm of order norm_type of each window of x [n, c, h, w].", "lp_pool2d(ones(1, 2, 4, 4), 2.0, 2)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(lp_body(c, 2)); });

}  // namespace holon::ops
