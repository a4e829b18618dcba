// Convolution over [n, c, h, w] and [n, c, d, h, w], and its transpose; one-dimensional ones have h == 1. Results are
// stored with the channels next to each other, which the kernels are fastest in: an ordinary tensor with other
// strides. The batch splits, and so do the output channels; input channels are contracted; of grouped convolutions
// whole groups split; windows are whole.
#include "holon/kernels/conv.h"
#include "holon/internal_ops/conv.h"
#include "holon/ops/create.h"

#include <algorithm>

#include "holon/kernels/copy.h"
#include "holon/kernels/sum_tree.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/conv.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/flops.h"
#include "holon/ops/reduce.h"
#include "holon/ops/resize.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/windows.h"

namespace holon::ops {
namespace {

// The groups of the local part: rank's channels of x, over those that a filter sees.
kernels::Conv2d conv_of(const AttrReader& c, int64_t channels, int64_t per_group) {
  kernels::Conv2d p;
  size_t n = c.ints("stride"_attr).size();
  for (size_t i = 0; i < n; ++i) {
    p.stride[i] = c.ints("stride"_attr)[i];
    p.dilation[i] = c.ints("dilation"_attr)[i];
    p.padding[i] = c.ints("padding"_attr)[i];
    p.padding[n + i] = c.ints("padding"_attr)[n + i];
  }
  p.groups = c.i("groups"_attr) == 1 || per_group == 0 ? c.i("groups"_attr) : channels / per_group;
  return p;
}

// Whole groups: the same factor on the channels of x, the weight's filters and the channels of the result. Groups of
// one channel each way divide in any way.
int group_factor(RuleCall& r, const Dims& x, const Dims& y) {
  int64_t groups = r.i("groups"_attr);
  return r.rule.factor(false, x[1] == groups && y[1] == groups ? 0 : groups);
}

// Before all axes, then behind: padding may be given as n numbers, or as 2 n.
Dims padding_of(const BodyCall& c, int n) {
  Dims given(c.ints("padding"_attr));
  Dims v = given.size() == 2 * n ? given : per_axis(c, "padding"_attr, n, 0);
  for (int64_t x : v) {
    if (x < 0) fail_value("{}: padding {} is negative. Crop by slicing.", c.op().name(), given);
    if (x > kMostOfWindow) fail_value("{}: padding {} exceeds {}. Use less.", c.op().name(), given, kMostOfWindow);
  }
  if (v.size() == n)
    for (int i = 0; i < n; ++i) v.push_back(v[i]);
  return v;
}

struct Operands {
  Tensor x, weight, bias;
  bool batched = true;
};

// The operands with a batch axis; one-dimensional ones with a height of 1. transposed: weight is [in, out / groups,
// ...].
Operands operands_of(const BodyCall& c, int n, bool transposed) {
  Operands o{c.in(0), c.in(1), c.in(2), true};
  const char* op = c.op().name();
  if (!is_floating(o.x.dtype()) || o.x.dtype() != o.weight.dtype())
    fail_type("{}: x is {}, weight {}; they must be of one floating point dtype. Convert one of them by to().", op,
              name(o.x.dtype()), name(o.weight.dtype()));
  if ((o.x.ndim() != n + 2 && o.x.ndim() != n + 1) || o.weight.ndim() != n + 2)
    fail_value("{}: x is {}, weight {}; it takes x with {} axes (or {} without the batch) and weight with {}. Add axes "
               "by unsqueeze().",
               op, o.x.shape(), o.weight.shape(), n + 2, n + 1, n + 2);
  if (o.x.ndim() == n + 1) o.x = unsqueeze(o.x, 0), o.batched = false;
  int64_t groups = c.i("groups"_attr), in = o.x.shape()[1], w0 = o.weight.shape()[0], w1 = o.weight.shape()[1];
  int64_t all = 0;  // channels of all groups, of which a filter has one's
  bool fits =
      groups >= 1 && !__builtin_mul_overflow(w1, groups, &all) && w0 % groups == 0 && in == (transposed ? w0 : all);
  if (!fits)
    fail_value("{}: the channels do not fit: x is {}, weight {}, groups {}. {}", op, c.in(0).shape(), o.weight.shape(),
               groups,
               transposed ? "weight is [in, out / groups, ...], and groups divides in."
                          : "weight is [out, in / groups, ...], and groups divides out.");
  int64_t out = transposed ? all : w0;
  if (o.bias.defined() && (o.bias.shape() != Dims{out} || o.bias.dtype() != o.x.dtype()))
    fail_value("{}: bias is {} {}, it must be {} {}. Give one value per output channel.", op, o.bias.shape(),
               name(o.bias.dtype()), Dims{out}, name(o.x.dtype()));
  if (n == 1) o.x = unsqueeze(o.x, 2), o.weight = unsqueeze(o.weight, 2);
  return o;
}

// Attributes of one axis for the two that the kernel has.
void add_height(Dims& v, int64_t neutral) {
  if (v.size() == 1) v.insert(0, neutral);
}
void add_height_to_padding(Dims& v) {
  if (v.size() == 2) v = {0, v[0], 0, v[1]};
}

Tensor as_given(Tensor y, const Operands& o, int n) {
  if (n == 1) y = squeeze(y, Dims{2});
  return o.batched ? y : squeeze(y, Dims{0});
}

void conv_body(BodyCall& c, int n) {
  Operands o = operands_of(c, n, false);
  Dims stride = per_axis(c, "stride"_attr, n, 1), dilation = per_axis(c, "dilation"_attr, n, 1),
       padding = padding_of(c, n);
  for (int i = 0; i < n; ++i) {
    int64_t size = c.in(0).size(i - n), window = dilation[i] * (c.in(1).size(i - n) - 1) + 1,
            room = size + padding[i] + padding[n + i];
    if (room < window)
      fail_value("{}: the kernel is larger than the padded input: x is {}, weight {}: {} places, a window of {}. Use a "
                 "smaller kernel or more padding.",
                 c.op().name(), c.in(0).shape(), c.in(1).shape(), room, window);
  }
  add_height(stride, 1), add_height(dilation, 1), add_height_to_padding(padding);
  c.out.push_back(as_given(convolution(o.x, o.weight, o.bias, stride, padding, dilation, c.i("groups"_attr)), o, n));
}

void conv_transpose_body(BodyCall& c, int n) {
  Operands o = operands_of(c, n, true);
  Dims stride = per_axis(c, "stride"_attr, n, 1), dilation = per_axis(c, "dilation"_attr, n, 1),
       padding = per_axis(c, "padding"_attr, n, 0), more = per_axis(c, "output_padding"_attr, n, 0);
  Dims shape{o.x.shape()[0], c.in(1).shape()[1] * c.i("groups"_attr)}, sides;
  Dims beyond =
      Dims::filled(2 * n, 0);  // zeros behind each axis, where output_padding goes beyond what windows can reach
  if (n == 1) shape.push_back(1);
  Dims whole = shape;
  bool empty = false;
  for (int i = 0; i < n; ++i) {
    if (more[i] >= std::max(stride[i], dilation[i]))
      fail_value("{}: output_padding {} must be smaller than stride {} or dilation {}.", c.op().name(), more, stride,
                 dilation);
    int64_t size;
    if (__builtin_mul_overflow(c.in(0).size(i - n) - 1, stride[i], &size) || size > int64_t{1} << 62)
      fail_value("{}: x {} with stride {} has a result too large. Use a smaller stride.", c.op().name(),
                 c.in(0).shape(), stride);
    size += dilation[i] * (c.in(1).size(i - n) - 1) + more[i] + 1 - 2 * padding[i];
    if (size < 0)
      fail_value("{}: the result of x {} and weight {} has the size {} along axis {}. Use less padding.", c.op().name(),
                 c.in(0).shape(), c.in(1).shape(), size, i - n);
    empty |= size == 0;
    int64_t rest = std::max<int64_t>(0, more[i] - (stride[i] - 1));
    beyond[2 * (n - 1 - i) + 1] = rest;
    shape.push_back(size - rest);
    whole.push_back(size);
  }
  if (empty) {  // of x, so that backward gives x zeros
    c.out.push_back(as_given(reshape(slice(reshape(o.x, {-1}), 0, 0, 0), whole), o, n));
    return;
  }
  for (int i = 0; i < n; ++i) sides.push_back(padding[i]);
  for (int i = 0; i < n; ++i) sides.push_back(padding[i]);
  add_height(stride, 1), add_height(dilation, 1), add_height_to_padding(sides);
  Tensor y = as_given(convolution_input_grad(o.x, o.weight, shape, stride, sides, dilation, c.i("groups"_attr)), o, n);
  if (beyond != Dims::filled(2 * n, 0)) y = pad(y, beyond);
  if (o.bias.defined()) {
    Dims s{o.bias.shape()[0]};
    for (int i = 0; i < n; ++i) s.push_back(1);
    y = add(y, reshape(o.bias, s));
  }
  c.out.push_back(y);
}

Tensor input_grad(const Grad& g, const Tensor& dy, const Tensor& w, const Dims& shape) {
  return convolution_input_grad(dy, w, shape, Dims(g.ints("stride"_attr)), Dims(g.ints("padding"_attr)),
                                Dims(g.ints("dilation"_attr)), g.i("groups"_attr));
}
Tensor weight_grad(const Grad& g, const Tensor& dy, const Tensor& x, const Dims& shape) {
  return convolution_weight_grad(dy, x, shape, Dims(g.ints("stride"_attr)), Dims(g.ints("padding"_attr)),
                                 Dims(g.ints("dilation"_attr)), g.i("groups"_attr));
}
Tensor conv_again(const Grad& g, const Tensor& x, const Tensor& w) {
  return convolution(x, w, {}, Dims(g.ints("stride"_attr)), Dims(g.ints("padding"_attr)), Dims(g.ints("dilation"_attr)),
                     g.i("groups"_attr));
}

}  // namespace

HOLON_OP(conv1d,
         "conv1d(Tensor x, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, int[1] dilation=1, int "
         "groups=1) -> Tensor")
    .doc("Convolution of x [n, c, l] with weight [out, c/groups, k].", "conv1d(ones(1, 2, 5), ones(3, 2, 3)).shape")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) { conv_body(c, 1); });
HOLON_OP(conv2d,
         "conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int "
         "groups=1) -> Tensor")
    .doc("Convolution of x [n, c, h, w] with weight [out, c/groups, kh, kw]. padding: one number, one for each axis, "
         "or (top, left, bottom, right).",
         "conv2d(ones(1, 2, 5, 5), ones(3, 2, 3, 3)).shape")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) { conv_body(c, 2); });
HOLON_OP(conv3d,
         "conv3d(Tensor x, Tensor weight, Tensor? bias=None, int[3] stride=1, int[3] padding=0, int[3] dilation=1, int "
         "groups=1) -> Tensor")
    .doc("Convolution of x [n, c, d, h, w] with weight [out, c/groups, kd, kh, kw].",
         "conv3d(ones(1, 2, 3, 5, 5), ones(3, 2, 3, 3, 3)).shape")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) { conv_body(c, 3); });

HOLON_OP(conv_transpose1d,
         "conv_transpose1d(Tensor x, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, int[1] "
         "output_padding=0, int groups=1, int[1] dilation=1) -> Tensor")
    .doc("The transpose of conv1d (its gradient in x), for x [n, in, l] and weight [in, out/groups, k].",
         "conv_transpose1d(ones(1, 2, 5), ones(2, 3, 3)).shape")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) { conv_transpose_body(c, 1); });
HOLON_OP(conv_transpose2d,
         "conv_transpose2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] "
         "output_padding=0, int groups=1, int[2] dilation=1) -> Tensor")
    .doc("The transpose of conv2d (its gradient in x), for x [n, in, h, w] and weight [in, out/groups, kh, kw].",
         "conv_transpose2d(ones(1, 2, 5, 5), ones(2, 3, 3, 3)).shape")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) { conv_transpose_body(c, 2); });
HOLON_OP(conv_transpose3d,
         "conv_transpose3d(Tensor x, Tensor weight, Tensor? bias=None, int[3] stride=1, int[3] padding=0, int[3] "
         "output_padding=0, int groups=1, int[3] dilation=1) -> Tensor")
    .doc("The transpose of conv3d (its gradient in x), for x [n, in, d, h, w] and weight [in, out/groups, kd, kh, kw].",
         "conv_transpose3d(ones(1, 2, 3, 5, 5), ones(2, 3, 3, 3, 3)).shape")
    .autocast(Autocast::kLower)
    .function_only()
    .body([](BodyCall& c) { conv_transpose_body(c, 3); });

HOLON_OP(convolution,
         "convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups) "
         "-> Tensor")
    .doc("Convolution over two or three axes; padding before each axis, then behind each.")
    .flops([](const CallShapes& c) {
      return 2 * elements(c.out()) * elements(c.in(1)) / static_cast<double>(std::max<int64_t>(1, c.in(1)[0]));
    })
    .hidden()
    .infer([](Infer& c) {
      c.require(c.i("groups"_attr) >= 1 && c.shape(0)[1] == c.shape(1)[1] * c.i("groups"_attr) &&
                    c.shape(1)[0] % c.i("groups"_attr) == 0,
                "the channels do not fit", "Check them.");
      Dims out{c.shape(0)[0], c.shape(1)[0]};
      size_t n = c.ints("stride"_attr).size();
      for (size_t i = 0; i < n; ++i)
        out.push_back(kernels::conv_out_size(c.shape(0)[static_cast<int>(2 + i)], c.shape(1)[static_cast<int>(2 + i)],
                                             c.ints("stride"_attr)[i], c.ints("padding"_attr)[i],
                                             c.ints("padding"_attr)[n + i], c.ints("dilation"_attr)[i]));
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int n = r.rule.factor();
      r.rule.in(0, 0, n);
      r.rule.out(0, 0, n);
      if (r.i("groups"_attr) != 1) {
        int g = group_factor(r, r.in[0].shape, r.out[0].shape);
        r.rule.in(0, 1, g);
        r.rule.in(1, 0, g);
        if (given(r, 2)) r.rule.in(2, 0, g);
        r.rule.out(0, 1, g);
        return;
      }
      int o = r.rule.factor(), i = r.rule.factor(true);
      r.rule.in(1, 0, o);
      if (given(r, 2)) r.rule.in(2, 0, o);
      r.rule.out(0, 1, o);
      r.rule.in(0, 1, i);
      r.rule.in(1, 1, i);
    })
    .linear_in({0, 1})
    .layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) {
      if (c.out().numel() == 0) return;
      kernels::conv2d(c.in(0), c.in(1), c.present(2) && c.counts_once() ? &c.in(2) : nullptr,
                      conv_of(c, c.in(0).shape[1], c.in(1).shape[1]), c.out());
    })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, input_grad(g, g.dy(), g.x(1), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, weight_grad(g, g.dy(), g.x(0), g.in_shape(1)));
      if (!g.needs(2)) return;
      Dims axes{0};
      for (int a = 2; a < g.in_shape(0).size(); ++a) axes.push_back(a);
      g.dx(2, sum(g.dy(), axes));
    });
HOLON_OP(convolution_input_grad,
         "convolution_input_grad(Tensor dy, Tensor weight, int[] shape, int[] stride, int[] padding, int[] dilation, "
         "int groups) -> Tensor")
    .doc("Gradient of convolution in x, which has the given shape.")
    .flops([](const CallShapes& c) {
      return 2 * elements(c.in(0)) * elements(c.in(1)) / static_cast<double>(std::max<int64_t>(1, c.in(1)[0]));
    })
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      int n = r.rule.factor();
      r.rule.in(0, 0, n);
      r.rule.out(0, 0, n);
      if (r.i("groups"_attr) != 1) {
        int g = group_factor(r, r.out[0].shape, r.in[0].shape);
        r.rule.in(0, 1, g);
        r.rule.in(1, 0, g);
        r.rule.out(0, 1, g);
        return;
      }
      int i = r.rule.factor(), o = r.rule.factor(true);
      r.rule.in(0, 1, o);
      r.rule.in(1, 0, o);
      r.rule.in(1, 1, i);
      r.rule.out(0, 1, i);
    })
    .linear_in({0, 1})
    .layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) {
      if (c.out().numel() == 0) return;
      kernels::conv2d_backward_data(c.in(0), c.in(1), conv_of(c, c.out().shape[1], c.in(1).shape[1]), c.out());
    })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, conv_again(g, g.dy(), g.x(1)));
      if (g.needs(1)) g.dx(1, weight_grad(g, g.x(0), g.dy(), g.in_shape(1)));
    });
HOLON_OP(convolution_weight_grad,
         "convolution_weight_grad(Tensor dy, Tensor x, int[] shape, int[] stride, int[] padding, int[] dilation, int "
         "groups) -> Tensor")
    .doc("Gradient of convolution in the weight, which has the given shape.")
    .flops([](const CallShapes& c) {
      return 2 * elements(c.in(0)) * elements(c.out()) / static_cast<double>(std::max<int64_t>(1, c.out()[0]));
    })
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      int n = r.rule.factor(true);
      r.rule.in(0, 0, n);
      r.rule.in(1, 0, n);
      if (r.i("groups"_attr) != 1) {
        int g = group_factor(r, r.in[1].shape, r.in[0].shape);
        r.rule.in(0, 1, g);
        r.rule.in(1, 1, g);
        r.rule.out(0, 0, g);
        return;
      }
      int o = r.rule.factor(), i = r.rule.factor();
      r.rule.in(0, 1, o);
      r.rule.out(0, 0, o);
      r.rule.in(1, 1, i);
      r.rule.out(0, 1, i);
    })
    .linear_in({0, 1})
    .sums_in_tree([](const CallShapes&) { return 2 * kernels::kSumLeaf; })  // an image is a subtree of its own
    .kernel([](KernelCall& c) {
      if (c.out().numel() == 0) return;
      kernels::conv2d_backward_weights(c.in(0), c.in(1), conv_of(c, c.in(1).shape[1], c.out().shape[1]), c.out());
    })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, conv_again(g, g.x(1), g.dy()));
      if (g.needs(1)) g.dx(1, input_grad(g, g.x(0), g.dy(), g.in_shape(1)));
    });

}  // namespace holon::ops
