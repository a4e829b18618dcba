// Normalisation of channels (axis 1): batch norm, group norm, instance norm. Statistics of a batch that is split are
// those of the whole one: sums of x and of its squares are contracted, become partial sums, and are added up over the
// ranks before use.
#include "holon/internal_ops/batch_norm.h"
#include "holon/kernels/channel_norm.h"
#include "holon/ops/index.h"

#include <algorithm>

#include "holon/base/context.h"
#include "holon/kernels/copy.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/batch_norm.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/norm_gradients.h"
#include "holon/ops/reduce.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/tensor/tensor.h"

namespace holon::ops {
namespace {

DType statistics_dtype(DType dtype) { return dtype == float64 ? float64 : float32; }

int64_t elements_per_channel(const Dims& shape) {
  int64_t n = 1;
  for (int a = 0; a < shape.size(); ++a)
    if (a != 1) n *= shape[a];
  return n;
}

void require_channels(const BodyCall& c, std::initializer_list<std::pair<size_t, const char*>> which) {
  const Tensor& x = c.in(0);
  const char* op = c.op().name();
  if (x.ndim() < 2)
    fail_value("{}: x is {}; it needs the axes [n, channels, ...]. Add one by unsqueeze().", op, x.shape());
  if (!is_floating(x.dtype()))
    fail_type("{}: x is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).", op,
              name(x.dtype()));
  for (auto [i, what] : which) {
    if (!c.present(i)) continue;
    if (c.in(i).shape() != Dims{x.shape()[1]})
      fail_value("{}: {} has shape {}, x {} has {} channels. Give one value for each channel.", op, what,
                 c.in(i).shape(), x.shape(), x.shape()[1]);
    if (!is_floating(c.in(i).dtype()))
      fail_type("{}: {} is {}; it must be a floating point tensor.", op, what, name(c.in(i).dtype()));
  }
}

Tensor as(const Tensor& t, DType dtype) { return t.dtype() == dtype ? t : cast(t, dtype); }

Tensor batch_norm_fixed(const Tensor& x, const Tensor& mean, const Tensor& var, const Tensor& weight,
                        const Tensor& bias, double eps) {
  DType dtype = statistics_dtype(x.dtype());
  return batch_norm_apply(x, as(mean.detach(), dtype), rsqrt(add(as(var.detach(), dtype), eps)), weight, bias, 0);
}

// One number for each channel of x, to multiply with it.
Tensor along_channels(const Tensor& t, const Dims& x) {
  Dims shape = Dims::filled(x.size(), 1);
  shape[1] = x[1];
  return reshape(t, shape);
}

Tensor channel_sums(const Tensor& t) {
  Dims axes;
  for (int a = 0; a < t.ndim(); ++a)
    if (a != 1) axes.push_back(a);
  return sum(t, axes);
}

// batch_norm_stats(). In an order of sums that no layout changes it is made of float32 sums, of x and then of the
// squares of the distances from the mean, which lose no digits.
Tensor statistics_of(const Tensor& x, int64_t count) {
  if (!Context::current().layout_free() || x.dtype() != float32) return batch_norm_stats(x);
  const double n = static_cast<double>(count);
  const Tensor sums = channel_sums(x), mean = cast(div(sums, n), float64);
  const Tensor away = channel_sums(square(sub(x, along_channels(cast(mean, float32), x.shape()))));
  const Tensor total = cast(sums, float64), square_of_mean = square(div(total, n));
  return stack({total, add(cast(away, float64), mul(square_of_mean, n))}, 0);
}

// The gradients of batch_norm_apply by ops.
void grad_by_ops(Grad& g) {
  const Dims& shape = g.in_shape();
  const Tensor dy = in_norm_dtype(g.dy()), rstd = along_channels(g.x(2), shape);
  const Tensor weighted = g.x(3).defined() ? mul(dy, along_channels(in_norm_dtype(g.x(3)), shape)) : dy;
  NormGradients d;
  if (g.i("count"_attr)) {
    Dims axes;
    for (int a = 0; a < shape.size(); ++a)
      if (a != 1) axes.push_back(a);
    d = norm_gradients(weighted, g.x(0), rstd, axes, true);
  } else {
    d = {mul(weighted, rstd), mul(sub(in_norm_dtype(g.x(0)), along_channels(g.x(1), shape)), rstd)};
  }
  if (g.needs(0)) g.dx(0, d.dx);
  if (g.needs(3)) g.dx(3, channel_sums(mul(dy, d.normalised)));
  if (g.needs(4)) g.dx(4, channel_sums(dy));
}

// The gradients of group_norm_stats by ops.
void group_grad_by_ops(Grad& g) {
  const Dims& shape = g.in_shape();
  const int64_t groups = g.i("groups"_attr);
  const Tensor dy = in_norm_dtype(g.dy());
  const Tensor weighted = g.x(1).defined() ? mul(dy, along_channels(in_norm_dtype(g.x(1)), shape)) : dy;
  const Dims rows{shape[0], groups, shape[0] * groups > 0 ? shape.numel() / (shape[0] * groups) : 0};
  auto d = norm_gradients(reshape(weighted, rows), reshape(g.x(0), rows), unsqueeze(g.y(2), 2), {2}, true);
  if (g.needs(0)) g.dx(0, reshape(d.dx, shape));
  if (g.needs(1)) g.dx(1, channel_sums(mul(dy, reshape(d.normalised, shape))));
  if (g.needs(2)) g.dx(2, channel_sums(dy));
}

}  // namespace

HOLON_OP(batch_norm,
         "batch_norm(Tensor x, Tensor? running_mean, Tensor? running_var, Tensor? weight=None, Tensor? bias=None, bool "
         "training=False, float momentum=0.1, float eps=1e-05) -> Tensor")
    .doc("x [n, channels, ...] normalised to mean 0 and variance 1 in each channel, times weight plus bias. In "
         "training (or without running statistics) with the statistics of the whole batch on all ranks, which update "
         "running_mean and running_var with the weight momentum; else with the running ones.",
         "batch_norm(ones(2, 3, 4, 4), zeros(3), ones(3))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      require_channels(c, {{1, "running_mean"}, {2, "running_var"}, {3, "weight"}, {4, "bias"}});
      const Tensor &x = c.in(0), &running_mean = c.in(1), &running_var = c.in(2);
      if (c.present(1) != c.present(2)) fail_value("batch_norm: pass both running_mean and running_var, or neither.");
      if (!c.b("training"_attr) || x.numel() == 0) {
        if (!c.present(1))
          fail_value("batch_norm: x is {} and there are no running statistics. Pass them, or train on a batch that is "
                     "not empty.",
                     x.shape());
        c.out.push_back(batch_norm_fixed(x, running_mean, running_var, c.in(3), c.in(4), c.f("eps"_attr)));
        return;
      }
      int64_t count = elements_per_channel(x.shape());
      if (count == 1)
        fail_value("batch_norm: x is {}: expected more than 1 value per channel when training. Use a larger batch, or "
                   "training=False.",
                   x.shape());
      TensorVec stats;
      {
        NoGradGuard no_grad;
        auto s = batch_norm_moments(statistics_of(x, count), running_mean, running_var, count, c.f("eps"_attr),
                                    c.f("momentum"_attr), statistics_dtype(x.dtype()));
        for (auto& t : s) stats.push_back(t);
        if (c.present(1)) {
          copy_(running_mean.detach(), stats[2]);
          copy_(running_var.detach(), stats[3]);
        }
      }
      c.out.push_back(batch_norm_apply(x, stats[0], stats[1], c.in(3), c.in(4), count));
    });

HOLON_OP(batch_norm_stats, "batch_norm_stats(Tensor x) -> Tensor")
    .doc("Sums of x and of its squares for each channel.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.out({2, c.shape(0)[1]}, float64);
    })
    .rule([](RuleCall& r) {
      for (int a = 0; a < r.in[0].shape.size(); ++a) {
        int f = r.rule.factor(a != 1);
        r.rule.in(0, a, f);
        if (a == 1) r.rule.out(0, 1, f);
      }
    })
    .kernel([](KernelCall& c) { kernels::channel_moments(c.in(0), c.out()); });

HOLON_OP(batch_norm_moments,
         "batch_norm_moments(Tensor stats, Tensor? running_mean, Tensor? running_var, int count, float eps, float "
         "momentum, dtype dtype) -> (Tensor, Tensor, Tensor, Tensor)")
    .doc("Mean and reciprocal deviation by the sums of count elements, and the new running statistics.")
    .hidden()
    .infer([](Infer& c) {
      Dims channels{c.shape(0)[1]};
      require_shape(c, 0, {2, channels[0]});
      for (size_t i = 1; i < 3; ++i) require_shape(c, i, channels);
      c.out(channels, c.dtype("dtype"_attr));
      c.out(channels, c.dtype("dtype"_attr));
      for (size_t i = 1; i < 3; ++i) c.out(channels, c.present(i) ? c.dtype_of(i) : c.dtype("dtype"_attr));
    })
    .rule("K c, c, c -> c, c, c, c")
    .kernel([](KernelCall& c) {
      kernels::channel_statistics(kernels::contiguous(c.in(0)), c.in(1), c.in(2),
                                  static_cast<double>(c.i("count"_attr)), c.f("eps"_attr), c.f("momentum"_attr),
                                  c.out(0), c.out(1), c.out(2), c.out(3));
    });

HOLON_OP(batch_norm_apply,
         "batch_norm_apply(Tensor x, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, int count) -> Tensor")
    .doc("(x - mean) rstd weight + bias. In the gradient mean and rstd are constants, or with a count the statistics "
         "of so many elements of x.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      for (size_t i = 1; i < 5; ++i) require_shape(c, i, {c.shape(0)[1]});
      c.out(c.shape(0), c.dtype_of(0));
    })
    .layout(Layout::kLikeInput)
    .rule([](RuleCall& r) {
      for (int a = 0; a < r.in[0].shape.size(); ++a) {
        int f = r.rule.factor();
        r.rule.in(0, a, f);
        r.rule.out(0, a, f);
        if (a != 1) continue;
        for (size_t i = 1; i < 5; ++i)
          if (given(r, i)) r.rule.in(i, 0, f);
      }
      // Linear in each of these, together with the bias if there is one.
      if (given(r, 4)) {
        pass_partial(r, {0, 1, 4}, {0});
        pass_partial(r, {2, 4}, {0});
        if (given(r, 3)) pass_partial(r, {3, 4}, {0});
      } else {
        pass_partial(r, {0, 1}, {0});
        pass_partial(r, {2}, {0});
        if (given(r, 3)) pass_partial(r, {3}, {0});
      }
    })
    .kernel([](KernelCall& c) { kernels::channel_normalize(c.in(0), c.in(1), c.in(2), c.in(3), c.in(4), c.out()); })
    .saves({0, 1, 2, 3})
    .grad([](Grad& g) {
      bool weights = g.needs(3) || g.needs(4);
      DType dtype = g.needs(3) ? g.in_dtype(3) : g.needs(4) ? g.in_dtype(4) : float32;
      if (grad_enabled() || Context::current().layout_free()) return grad_by_ops(g);
      if (g.i("count"_attr)) {
        auto d = batch_norm_backward(g.x(0), g.dy(), g.x(1), g.x(2), g.x(3),
                                     batch_norm_products(g.x(0), g.dy(), g.x(1)), g.i("count"_attr), dtype);
        if (g.needs(0)) g.dx(0, d[0]);
        if (g.needs(3)) g.dx(3, d[1]);
        if (g.needs(4)) g.dx(4, as(d[2], g.in_dtype(4)));
        return;
      }
      if (g.needs(0)) g.dx(0, batch_norm_apply(g.dy(), zeros_like(g.x(1)), g.x(2), g.x(3), {}, 0));
      if (!weights) return;
      auto d = batch_norm_weight_grad(batch_norm_products(g.x(0), g.dy(), g.x(1)), g.x(2), dtype);
      if (g.needs(3)) g.dx(3, d[0]);
      if (g.needs(4)) g.dx(4, as(d[1], g.in_dtype(4)));
    });
HOLON_OP(batch_norm_products, "batch_norm_products(Tensor x, Tensor dy, Tensor mean) -> Tensor")
    .doc("Sums of dy and of dy (x - mean) for each channel.")
    .hidden()
    .infer([](Infer& c) {
      require_shape(c, 1, c.shape(0));
      require_shape(c, 2, {c.shape(0)[1]});
      c.out({2, c.shape(0)[1]}, float64);
    })
    .rule([](RuleCall& r) {
      for (int a = 0; a < r.in[0].shape.size(); ++a) {
        int f = r.rule.factor(a != 1);
        r.rule.in(0, a, f);
        r.rule.in(1, a, f);
        if (a == 1) r.rule.in(2, 0, f), r.rule.out(0, 1, f);
      }
    })
    .linear_in({1})
    .kernel([](KernelCall& c) { kernels::channel_products(c.in(1), c.in(0), c.in(2), c.out()); });
HOLON_OP(batch_norm_backward,
         "batch_norm_backward(Tensor x, Tensor dy, Tensor mean, Tensor rstd, Tensor? weight, Tensor products, int "
         "count, dtype dtype) -> (Tensor, Tensor, Tensor)")
    .doc("Gradients of batch_norm_apply in x, weight and bias, where the statistics are those of count elements of x.")
    .hidden()
    .infer([](Infer& c) {
      const int64_t channels = c.shape(0)[1];
      require_shape(c, 1, c.shape(0));
      for (size_t i = 2; i < 5; ++i) require_shape(c, i, {channels});
      require_shape(c, 5, {2, channels});
      c.out(c.shape(0), c.dtype_of(0));
      c.out({channels}, c.dtype("dtype"_attr));
      c.out({channels}, c.dtype("dtype"_attr));
    })
    .layout(Layout::kLikeInput)
    .rule([](RuleCall& r) {
      for (int a = 0; a < r.in[0].shape.size(); ++a)
        if (a == 1) {
          int f = r.rule.factor();
          r.rule.in(0, 1, f);
          r.rule.in(1, 1, f);
          r.rule.in(2, 0, f);
          r.rule.in(3, 0, f);
          if (given(r, 4)) r.rule.in(4, 0, f);
          r.rule.in(5, 1, f);
          r.rule.out(0, 1, f);
          r.rule.out(1, 0, f);
          r.rule.out(2, 0, f);
        } else {  // the gradients of weight and bias come from the products alone
          Signature s;
          for (size_t i = 0; i < r.in.size(); ++i) s.in.push_back(i < 2 ? sbp::split(a) : sbp::broadcast());
          s.out.push_back(sbp::split(a));
          s.out.push_back(sbp::broadcast());
          s.out.push_back(sbp::broadcast());
          r.rule.add(s);
        }
      pass_partial(r, {1, 5}, {0, 1, 2});
      if (given(r, 4)) pass_partial(r, {4}, {0});
    })
    .kernel([](KernelCall& c) {
      const Array products = kernels::contiguous(c.in(5));
      kernels::channel_normalize_backward(c.in(1), c.in(0), c.in(2), c.in(3), c.in(4), products,
                                          static_cast<double>(c.i("count"_attr)), c.out(0));
      kernels::channel_weight_gradients(products, c.in(3), c.out(1), c.out(2));
    });
HOLON_OP(batch_norm_weight_grad,
         "batch_norm_weight_grad(Tensor products, Tensor rstd, dtype dtype) -> (Tensor, Tensor)")
    .doc("Gradients of batch_norm_apply in weight and bias.")
    .hidden()
    .infer([](Infer& c) {
      require_shape(c, 0, {2, c.shape(1)[0]});
      c.out(c.shape(1), c.dtype("dtype"_attr));
      c.out(c.shape(1), c.dtype("dtype"_attr));
    })
    .rule([](RuleCall& r) {
      int f = r.rule.factor();
      r.rule.in(0, 1, f);
      r.rule.in(1, 0, f);
      r.rule.out(0, 0, f);
      r.rule.out(1, 0, f);
      pass_partial(r, {1}, {0});
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::channel_weight_gradients(kernels::contiguous(c.in(0)), c.in(1), c.out(0), c.out(1));
    });

HOLON_OP(group_norm,
         "group_norm(Tensor x, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor")
    .doc("x [n, channels, ...] normalised to mean 0 and variance 1 in each of num_groups groups of channels of each "
         "sample, times weight plus bias.",
         "group_norm(ones(2, 4, 3), 2)")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      require_channels(c, {{1, "weight"}, {2, "bias"}});
      int64_t groups = c.i("num_groups"_attr), channels = c.in(0).shape()[1];
      if (groups < 1 || channels % groups)
        fail_value("group_norm: {} channels of x {} are not divisible into {} groups. Choose a divisor.", channels,
                   c.in(0).shape(), groups);
      c.out.push_back(group_norm_stats(c.in(0), c.in(1), c.in(2), groups, c.f("eps"_attr))[0]);
    });
HOLON_OP(group_norm_stats,
         "group_norm_stats(Tensor x, Tensor? weight, Tensor? bias, int groups, float eps) -> (Tensor, Tensor, Tensor)")
    .doc("group_norm with the mean and reciprocal deviation of each group.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims rows{c.shape(0)[0], c.i("groups"_attr)};
      c.out(c.shape(0), c.dtype_of(0));
      c.out(rows, statistics_dtype(c.dtype_of(0)));
      c.out(rows, statistics_dtype(c.dtype_of(0)));
    })
    .rule([](RuleCall& r) {
      // Whole groups: channels that are their own groups divide in any way.
      int64_t groups = r.i("groups"_attr);
      int n = r.rule.factor(), k = r.rule.factor(false, r.in[0].shape[1] == groups ? 0 : groups);
      r.rule.in(0, 0, n);
      r.rule.in(0, 1, k);
      for (size_t i = 1; i < 3; ++i)
        if (given(r, i)) r.rule.in(i, 0, k);
      for (size_t o = 0; o < 3; ++o) r.rule.out(o, 0, n), r.rule.out(o, 1, k);
      if (given(r, 1) && given(r, 2))
        pass_partial(r, {1, 2}, {0});
      else if (given(r, 1))
        pass_partial(r, {1}, {0});
    })
    .kernel([](KernelCall& c) {
      kernels::group_norm(c.in(0), c.in(1), c.in(2), c.f("eps"_attr), c.out(0), c.out(1), c.out(2));
    })
    .saves({0, 1}, {1, 2})
    .grad([](Grad& g) {
      if (!g.has_dy()) return;
      if (grad_enabled() || Context::current().layout_free()) return group_grad_by_ops(g);
      DType dtype = g.needs(1) ? g.in_dtype(1) : g.n_in() > 2 && g.needs(2) ? g.in_dtype(2) : g.in_dtype(0);
      auto d = group_norm_backward(g.dy(), g.x(0), g.y(1), g.y(2), g.x(1), g.i("groups"_attr), dtype);
      if (g.needs(0)) g.dx(0, d[0]);
      if (g.needs(1)) g.dx(1, d[1]);
      if (g.needs(2)) g.dx(2, as(d[2], g.in_dtype(2)));
    });
HOLON_OP(group_norm_backward,
         "group_norm_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, int groups, dtype dtype) "
         "-> (Tensor, Tensor, Tensor)")
    .doc("Gradients of group_norm in x, weight and bias.")
    .hidden()
    .infer([](Infer& c) {
      for (int i : {2, 3})
        c.require(c.dtype_of(i) == statistics_dtype(c.dtype_of(1)), "the statistics have another dtype",
                  "Pass those of group_norm_stats.");
      require_shape(c, 0, c.shape(1));
      require_shape(c, 3, c.shape(2));
      require_shape(c, 4, {c.shape(1)[1]});
      c.out(c.shape(1), c.dtype_of(1));
      c.out({c.shape(1)[1]}, c.dtype("dtype"_attr));
      c.out({c.shape(1)[1]}, c.dtype("dtype"_attr));
    })
    .rule([](RuleCall& r) {
      int64_t groups = r.i("groups"_attr);
      int n = r.rule.factor(true), k = r.rule.factor(false, r.in[1].shape[1] == groups ? 0 : groups);
      for (size_t i = 0; i < 4; ++i) r.rule.in(i, 0, n), r.rule.in(i, 1, k);
      if (given(r, 4)) r.rule.in(4, 0, k);
      r.rule.out(0, 0, n);
      r.rule.out(0, 1, k);
      r.rule.out(1, 0, k);
      r.rule.out(2, 0, k);
      if (given(r, 4)) pass_partial(r, {4}, {0});
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::group_norm_backward(c.in(0), c.in(1), kernels::contiguous(c.in(2)), kernels::contiguous(c.in(3)),
                                   c.in(4), c.out(0), c.out(1), c.out(2));
    });

HOLON_OP(instance_norm,
         "instance_norm(Tensor x, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, Tensor? "
         "bias=None, bool use_input_stats=True, float momentum=0.1, float eps=1e-05) -> Tensor")
    .doc("x [n, channels, ...] normalised to mean 0 and variance 1 in each channel of each sample, times weight plus "
         "bias; with the running statistics unless use_input_stats.",
         "instance_norm(ones(2, 3, 4))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      require_channels(c, {{1, "running_mean"}, {2, "running_var"}, {3, "weight"}, {4, "bias"}});
      const Tensor& x = c.in(0);
      if (c.present(1) != c.present(2))
        fail_value("instance_norm: pass both running_mean and running_var, or neither.");
      if (!c.b("use_input_stats"_attr)) {
        if (!c.present(1))
          fail_value("instance_norm: there are no running statistics to use. Pass them, or use_input_stats=True.");
        c.out.push_back(batch_norm_fixed(x, c.in(1), c.in(2), c.in(3), c.in(4), c.f("eps"_attr)));
        return;
      }
      int64_t n = elements_per_channel(x.shape()) / std::max<int64_t>(x.shape()[0], 1);
      if (x.shape()[1] < 1) fail_value("instance_norm: x {} has no channels.", x.shape());
      if (n == 1)
        fail_value(
            "instance_norm: x is {}: expected more than 1 value per channel of a sample. Use use_input_stats=False.",
            x.shape());
      auto y = group_norm_stats(x, c.in(3), c.in(4), x.shape()[1], c.f("eps"_attr));
      c.out.push_back(y[0]);
      if (!c.present(1) || x.numel() == 0) return;
      NoGradGuard no_grad;
      double m = c.f("momentum"_attr);
      Tensor var = add(pow(y[2], -2.0), -c.f("eps"_attr));
      auto take = [&](const Tensor& running, const Tensor& fresh, double factor) {
        Tensor now = as(mul(mean(fresh.detach(), Dims{0}), m * factor), running.dtype());
        copy_(running.detach(), add(mul(running.detach(), 1 - m), now));
      };
      take(c.in(1), y[1], 1);
      take(c.in(2), var, static_cast<double>(n) / static_cast<double>(n - 1));
    });

}  // namespace holon::ops
