// Convolution and pooling over [n, c, h, w]. Results lie with the channels next to each other in memory, which the kernels are
// fastest in: an ordinary tensor with other strides. The batch splits, and so do the output channels of a convolution; its input
// channels are contracted; windows are whole.
#include "holon/kernels/cpu/conv.h"

#include "holon/kernels/cpu/pool.h"
#include "holon/ops/elementwise.h"

namespace holon::ops {
namespace {

kernels::Conv2d conv_of(const AttrReader& c) {
  kernels::Conv2d p;
  for (int i = 0; i < 2; ++i) {
    p.stride[i] = c.ints("stride")[static_cast<size_t>(i)];
    p.padding[i] = p.padding[i + 2] = c.ints("padding")[static_cast<size_t>(i)];
    p.dilation[i] = c.ints("dilation")[static_cast<size_t>(i)];
  }
  p.groups = c.i("groups");
  return p;
}

// Two numbers of an attribute, each at least `least`.
void require_pair(const Infer& c, std::string_view attr, int64_t least) {
  auto v = c.ints(attr);
  if (v.size() != 2 || v[0] < least || v[1] < least)
    fail_value("{}: {} must be one or two numbers of at least {}; found {}.", c.op().name(), attr, least, Dims(v));
}

void conv_infer(Infer& c) {
  c.require(c.ndim(0) == 4 && c.ndim(1) == 4, "x must be [n, c, h, w] and weight [out, in/groups, kh, kw]", "Add axes by unsqueeze().");
  c.require_floating(0);
  c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "x and weight have different dtypes", "Convert one of them.");
  require_pair(c, "stride", 1);
  require_pair(c, "padding", 0);
  require_pair(c, "dilation", 1);
  int64_t groups = c.i("groups");
  c.require(groups >= 1 && c.shape(0)[1] == c.shape(1)[1] * groups && c.shape(1)[0] % groups == 0,
            "the channels do not fit", "x has in channels, weight in / groups, and groups divides out.");
  if (c.present(2)) c.require(c.ndim(2) == 1 && c.shape(2)[0] == c.shape(1)[0], "bias is not [out]", "Give one value per output channel.");
  Dims out{c.shape(0)[0], c.shape(1)[0]};
  for (int i = 0; i < 2; ++i) {
    size_t k = static_cast<size_t>(i);
    int64_t size = c.shape(0)[2 + i] + 2 * c.ints("padding")[k] - c.ints("dilation")[k] * (c.shape(1)[2 + i] - 1) - 1;
    c.require(size >= 0, "the kernel is larger than the padded input", "Use a smaller kernel or more padding.");
    out.push_back(size / c.ints("stride")[k] + 1);
  }
  c.out(out, c.dtype_of(0));
}

Conv2dInputGradOptions input_options(const Grad& g) { return {.stride = Dims(g.ints("stride")), .padding = Dims(g.ints("padding")), .dilation = Dims(g.ints("dilation")), .groups = g.i("groups")}; }
Conv2dWeightGradOptions weight_options(const Grad& g) { return {.stride = Dims(g.ints("stride")), .padding = Dims(g.ints("padding")), .dilation = Dims(g.ints("dilation")), .groups = g.i("groups")}; }

kernels::Pool2d pool_of(const AttrReader& c) {
  kernels::Pool2d p;
  auto stride = c.has("stride") ? c.ints("stride") : c.ints("kernel_size");
  for (int i = 0; i < 2; ++i) {
    size_t k = static_cast<size_t>(i);
    p.kernel[i] = c.ints("kernel_size")[k];
    p.stride[i] = stride[k];
    p.padding[i] = p.padding[i + 2] = c.ints("padding")[k];
  }
  return p;
}

Dims pool_shape(const Infer& c) {
  c.require(c.ndim(0) == 4, "x must be [n, c, h, w]", "Add axes by unsqueeze().");
  require_pair(c, "kernel_size", 1);
  if (c.has("stride")) require_pair(c, "stride", 1);
  require_pair(c, "padding", 0);
  auto p = pool_of(c);
  Dims out{c.shape(0)[0], c.shape(0)[1]};
  for (int i = 0; i < 2; ++i) {
    c.require(2 * p.padding[i] <= p.kernel[i], "padding is more than half of the kernel", "Use less.");
    c.require(c.shape(0)[2 + i] + 2 * p.padding[i] >= p.kernel[i], "the kernel is larger than the padded input", "Use a smaller one.");
    out.push_back(kernels::pool_out_size(c.shape(0)[2 + i], p.kernel[i], p.stride[i], p.padding[i], p.padding[i], p.dilation[i], c.b("ceil_mode")));
  }
  return out;
}

}  // namespace

HOLON_OP(conv2d, "conv2d(Tensor x, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor")
    .doc("Convolution of x [n, c, h, w] with weight [out, c/groups, kh, kw].", "conv2d(ones(1, 2, 5, 5), ones(3, 2, 3, 3)).shape")
    .function_only()
    .infer(conv_infer)
    .rule([](RuleCall& r) {
      int n = r.rule.factor();
      r.rule.in(0, 0, n);
      r.rule.out(0, 0, n);
      if (r.i("groups") != 1) return;
      int o = r.rule.factor(), i = r.rule.factor(true);
      r.rule.in(1, 0, o);
      if (r.in.size() > 2 && r.in[2].shape.size()) r.rule.in(2, 0, o);
      r.rule.out(0, 1, o);
      r.rule.in(0, 1, i);
      r.rule.in(1, 1, i);
    })
    .linear_in({0, 1})
    .layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) { kernels::conv2d(c.in(0), c.in(1), c.present(2) && c.counts_once() ? &c.in(2) : nullptr, conv_of(c), c.out()); })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, conv2d_input_grad(g.dy(), g.x(1), g.in_shape(0), input_options(g)));
      if (g.needs(1)) g.dx(1, conv2d_weight_grad(g.dy(), g.x(0), g.in_shape(1), weight_options(g)));
      if (g.n_in() > 2 && g.needs(2)) g.dx(2, sum(g.dy(), Dims{0, 2, 3}));
    });
HOLON_OP(conv2d_input_grad, "conv2d_input_grad(Tensor dy, Tensor weight, int[] shape, *, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor")
    .doc("Gradient of conv2d in x.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape")), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      int n = r.rule.factor();
      r.rule.in(0, 0, n);
      r.rule.out(0, 0, n);
      if (r.i("groups") != 1) return;
      int i = r.rule.factor(), o = r.rule.factor(true);
      r.rule.in(0, 1, o);
      r.rule.in(1, 0, o);
      r.rule.in(1, 1, i);
      r.rule.out(0, 1, i);
    })
    .linear_in({0, 1})
    .layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) { kernels::conv2d_backward_data(c.in(0), c.in(1), conv_of(c), c.out()); })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, conv2d(g.dy(), g.x(1), {}, Dims(g.ints("stride")), Dims(g.ints("padding")), Dims(g.ints("dilation")), g.i("groups")));
      if (g.needs(1)) g.dx(1, conv2d_weight_grad(g.x(0), g.dy(), g.in_shape(1), weight_options(g)));
    });
HOLON_OP(conv2d_weight_grad, "conv2d_weight_grad(Tensor dy, Tensor x, int[] shape, *, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor")
    .doc("Gradient of conv2d in the weight.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape")), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      int n = r.rule.factor(true);
      r.rule.in(0, 0, n);
      r.rule.in(1, 0, n);
      if (r.i("groups") != 1) return;
      int o = r.rule.factor(), i = r.rule.factor();
      r.rule.in(0, 1, o);
      r.rule.out(0, 0, o);
      r.rule.in(1, 1, i);
      r.rule.out(0, 1, i);
    })
    .linear_in({0, 1})
    .kernel([](KernelCall& c) { kernels::conv2d_backward_weights(c.in(0), c.in(1), conv_of(c), c.out()); })
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, conv2d(g.x(1), g.dy(), {}, Dims(g.ints("stride")), Dims(g.ints("padding")), Dims(g.ints("dilation")), g.i("groups")));
      if (g.needs(1)) g.dx(1, conv2d_input_grad(g.x(0), g.dy(), g.in_shape(1), input_options(g)));
    });

HOLON_OP(max_pool2d, "max_pool2d(Tensor x, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, bool ceil_mode=False) -> Tensor")
    .doc("The largest value of each window of x [n, c, h, w]; stride is kernel_size unless given.", "max_pool2d(ones(1, 2, 4, 4), 2).shape")
    .function_only()
    .body([](BodyCall& c) {
      auto pair = [&](std::string_view name) { return Dims(c.ints(name)); };
      c.out.push_back(max_pool2d_index(c.in(0), pair("kernel_size"), c.has("stride") ? pair("stride") : pair("kernel_size"), pair("padding"), c.b("ceil_mode"))[0]);
    });
HOLON_OP(max_pool2d_index, "max_pool2d_index(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode) -> (Tensor, Tensor)")
    .doc("max_pool2d with the place of each maximum in its window.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims out = pool_shape(c);
      c.out(out, c.dtype_of(0));
      c.out(out, c.ints("kernel_size")[0] * c.ints("kernel_size")[1] <= 256 ? uint8 : int32);
    })
    .rule("n c H W -> n c I J, n c I J")
    .layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) { kernels::max_pool2d(c.in(0), pool_of(c), c.out(0), &c.out(1)); })
    .saves({}, {1})
    .grad([](Grad& g) {
      g.dx(0, max_pool2d_backward(g.dy(), g.y(1), Dims(g.ints("kernel_size")), Dims(g.ints("stride")), Dims(g.ints("padding")), g.in_shape()));
    });
HOLON_OP(max_pool2d_backward, "max_pool2d_backward(Tensor dy, Tensor index, int[2] kernel_size, int[2] stride, int[2] padding, int[] shape) -> Tensor")
    .doc("Gradient of max_pool2d.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape")), c.dtype_of(0)); })
    .rule("n c H W, n c H W -> n c I J")
    .linear_in({0})
    .layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) { kernels::max_pool2d_backward(c.in(0), c.in(1), pool_of(c), c.out()); });

HOLON_OP(avg_pool2d, "avg_pool2d(Tensor x, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, bool ceil_mode=False) -> Tensor")
    .doc("The mean of each window of x [n, c, h, w], padding counted; stride is kernel_size unless given.", "avg_pool2d(ones(1, 2, 4, 4), 2).shape")
    .function_only()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.out(pool_shape(c), c.dtype_of(0));
    })
    .rule("n c H W -> n c I J").linear().layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) { kernels::avg_pool2d(c.in(0), pool_of(c), c.out()); })
    .grad([](Grad& g) {
      Dims k(g.ints("kernel_size"));
      g.dx(0, avg_pool2d_backward(g.dy(), k, g.has("stride") ? Dims(g.ints("stride")) : k, Dims(g.ints("padding")), g.in_shape()));
    });
HOLON_OP(avg_pool2d_backward, "avg_pool2d_backward(Tensor dy, int[2] kernel_size, int[2] stride, int[2] padding, int[] shape) -> Tensor")
    .doc("Gradient of avg_pool2d.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape")), c.dtype_of(0)); })
    .rule("n c H W -> n c I J").linear().layout(Layout::kChannelsLast)
    .kernel([](KernelCall& c) { kernels::avg_pool2d_backward(c.in(0), pool_of(c), c.out()); });

}  // namespace holon::ops
