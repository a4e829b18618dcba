// Softmax and normalisation. Their axes are whole; all others may be split.
#include "holon/kernels/norm.h"
#include "holon/internal_ops/norm.h"
#include "holon/ops/create.h"

#include <cmath>

#include "holon/kernels/softmax.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/norm.h"
#include "holon/ops/norm_gradients.h"
#include "holon/ops/norm_rules.h"
#include "holon/ops/reduce.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

void softmax_infer(Infer& c) {
  c.require_floating(0);
  c.axis("dim"_attr);
  c.out(c.shape(0), c.dtype_of(0));
}

void softmax_rule(RuleCall& r) {
  int n = r.in[0].shape.size();
  int d = normalize_axis(r.i("dim"_attr), n, r.op().name());
  for (int a = 0; a < n; ++a) {
    if (a == d) continue;
    int f = r.rule.factor();
    for (size_t i = 0; i < r.in.size(); ++i) r.rule.in(i, a, f);
    r.rule.out(0, a, f);
  }
}

int dim_of(const KernelCall& c) { return normalize_axis(c.i("dim"_attr), c.out().ndim(), c.op().name()); }

// normalized_shape must be the end of x's shape, and the weights of that shape. Returns it.
Dims row_shape(const BodyCall& c, size_t n_weights) {
  const Tensor& x = c.in(0);
  Dims shape(c.ints("normalized_shape"_attr));
  int n = shape.size(), lead = x.ndim() - n;
  bool fits = n > 0 && lead >= 0;
  for (int i = 0; i < n && fits; ++i) fits = x.shape()[lead + i] == shape[i];
  if (!fits)
    fail_value("{}: normalized_shape {} does not match the end of x's shape {}. Give the sizes of its last axes.",
               c.op().name(), shape, x.shape());
  for (size_t i = 1; i <= n_weights; ++i)
    if (c.present(i) && c.in(i).shape() != shape)
      fail_value("{}: {} has shape {}, normalized_shape is {}. They must be the same.", c.op().name(),
                 i == 1 ? "weight" : "bias", c.in(i).shape(), shape);
  return shape;
}

// Gradients in x and weight by ops, of layer_norm (centred) or rms_norm.
void grad_by_ops(Grad& g, const Tensor& rstd, bool centred) {
  const int n = g.in_shape().size(), count = static_cast<int>(g.i("axes"_attr));
  Dims axes, rows = rstd.shape();
  for (int a = n - count; a < n; ++a) axes.push_back(a), rows.push_back(1);
  const Tensor& w = g.x(1);
  const Tensor dy = in_norm_dtype(g.dy());
  auto d = norm_gradients(w.defined() ? mul(dy, in_norm_dtype(w)) : dy, g.x(0), reshape(rstd, rows), axes, centred);
  if (g.needs(0)) g.dx(0, d.dx);
  if (g.needs(1)) g.dx(1, reduce_to(mul(dy, d.normalised), g.in_shape(1)));
}

}  // namespace

HOLON_OP(softmax, "softmax(Tensor x, int dim=-1) -> Tensor")
    .doc("exp(x) over its sum along dim.", "softmax(ones(2, 3), 1)")
    .autocast(Autocast::kFloat32)
    .infer(softmax_infer)
    .rule(softmax_rule)
    .fuses_along("dim")
    .kernel([](KernelCall& c) { kernels::softmax(c.in(0), dim_of(c), c.out()); })
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, softmax_backward(g.dy(), g.y(), g.i("dim"_attr))); });
HOLON_OP(softmax_backward, "softmax_backward(Tensor dy, Tensor y, int dim) -> Tensor")
    .doc("Gradient of softmax.")
    .hidden()
    .infer_like()
    .rule(softmax_rule)
    .linear_in({0})
    .fuses_along("dim")
    .kernel([](KernelCall& c) { kernels::softmax_backward(c.in(0), c.in(1), dim_of(c), c.out()); })
    .saves({0, 1})
    .grad([](Grad& g) {
      // Of y (dy - sum(y dy)).
      Dims dim{g.i("dim"_attr)};
      if (g.needs(0)) g.dx(0, softmax_backward(g.dy(), g.x(1), g.i("dim"_attr)));
      if (g.needs(1))
        g.dx(1,
             sub(mul(g.dy(), sub(g.x(0), sum(mul(g.x(0), g.x(1)), dim, true))),
                 mul(g.x(0), sum(mul(g.dy(), g.x(1)), dim, true))));
    });
HOLON_OP(log_softmax, "log_softmax(Tensor x, int dim=-1) -> Tensor")
    .doc("The logarithm of softmax of x [...] along dim.", "log_softmax(ones(2, 3), 1)")
    .autocast(Autocast::kFloat32)
    .infer(softmax_infer)
    .rule(softmax_rule)
    .kernel([](KernelCall& c) { kernels::log_softmax(c.in(0), dim_of(c), c.out()); })
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, log_softmax_backward(g.dy(), g.y(), g.i("dim"_attr))); });
HOLON_OP(log_softmax_backward, "log_softmax_backward(Tensor dy, Tensor y, int dim) -> Tensor")
    .doc("Gradient of log_softmax.")
    .hidden()
    .infer_like()
    .rule(softmax_rule)
    .linear_in({0})
    .kernel([](KernelCall& c) { kernels::log_softmax_backward(c.in(0), c.in(1), dim_of(c), c.out()); })
    .saves({0, 1})
    .grad([](Grad& g) {
      // Of dy - exp(y) sum(dy).
      Dims dim{g.i("dim"_attr)};
      Tensor p = exp(g.x(1));
      if (g.needs(0)) g.dx(0, sub(g.dy(), sum(mul(g.dy(), p), dim, true)));
      if (g.needs(1)) g.dx(1, neg(mul(mul(g.dy(), p), sum(g.x(0), dim, true))));
    });

HOLON_OP(
    layer_norm,
    "layer_norm(Tensor x, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> Tensor")
    .doc("x normalised to mean 0 and variance 1 over its last axes, of sizes normalized_shape, times weight plus bias.",
         "layer_norm(ones(2, 3), [3])")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      int n = row_shape(c, 2).size();
      c.out.push_back(layer_norm_stats(c.in(0), c.in(1), c.in(2), n, c.f("eps"_attr))[0]);
    });
HOLON_OP(layer_norm_stats,
         "layer_norm_stats(Tensor x, Tensor? weight, Tensor? bias, int axes, float eps) -> (Tensor, Tensor, Tensor)")
    .doc("layer_norm with its mean and reciprocal deviation of each row.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims rows = c.shape(0);
      rows.resize(rows.size() - static_cast<int>(c.i("axes"_attr)));
      DType stats = statistics_dtype(c.dtype_of(0));
      c.out(c.shape(0), c.dtype_of(0));
      c.out(rows, stats);
      c.out(rows, stats);
    })
    .rule([](RuleCall& r) {
      row_rule(r, static_cast<int>(r.i("axes"_attr)));
      if (given(r, 1) && given(r, 2))
        pass_partial(r, {1, 2}, {0});
      else if (given(r, 1))
        pass_partial(r, {1}, {0});
    })
    .kernel([](KernelCall& c) {
      kernels::layer_norm(c.in(0), static_cast<int>(c.i("axes"_attr)), c.in(1), c.in(2), c.f("eps"_attr), c.out(0),
                          c.out(1), c.out(2));
    })
    .saves({0, 1}, {1, 2})
    .grad([](Grad& g) {
      if (!g.has_dy()) return;
      if (grad_enabled()) {
        grad_by_ops(g, g.y(2), true);
        if (g.needs(2)) g.dx(2, reduce_to(g.dy(), g.in_shape(2)));
        return;
      }
      if (!g.needs(1) && !g.needs(2) && !g.x(1).defined())
        return g.dx(0, layer_norm_plain_backward(g.dy(), g.x(0), g.y(1), g.y(2), g.i("axes"_attr)));
      auto d = layer_norm_backward(g.dy(), g.x(0), g.y(1), g.y(2), g.x(1), g.i("axes"_attr));
      if (g.needs(0)) g.dx(0, d[0]);
      if (g.needs(1)) g.dx(1, d[1]);
      if (g.needs(2)) g.dx(2, d[2]);
    });
HOLON_OP(layer_norm_backward,
         "layer_norm_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, int axes) -> (Tensor, "
         "Tensor, Tensor)")
    .doc("Gradients of layer_norm in x, weight and bias.")
    .hidden()
    .infer([](Infer& c) {
      Dims columns = columns_of(c, c.shape(1));
      c.out(c.shape(1), c.dtype_of(1));
      c.out(columns, c.dtype_of(1));
      c.out(columns, c.dtype_of(1));
    })
    .rule([](RuleCall& r) {
      row_backward_rule(r, {0, 1, 2, 3});
      if (given(r, 4)) pass_partial(r, {4}, {0});
    })
    .linear_in({0})
    .sums_in_tree()
    .kernel([](KernelCall& c) {
      kernels::layer_norm_backward(c.in(0), c.in(1), static_cast<int>(c.i("axes"_attr)), c.in(4), c.in(2), c.in(3),
                                   c.out(0), &c.out(1), &c.out(2));
    });
HOLON_OP(layer_norm_plain_backward,
         "layer_norm_plain_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, int axes) -> Tensor")
    .doc("Gradient in x of a layer_norm without weight and bias.")
    .hidden()
    .infer([](Infer& c) { c.out(c.shape(1), c.dtype_of(1)); })
    .rule([](RuleCall& r) {
      for (int a = 0; a < r.in[1].shape.size() - static_cast<int>(r.i("axes"_attr)); ++a) {
        int f = r.rule.factor();
        for (size_t i = 0; i < 4; ++i) r.rule.in(i, a, f);
        r.rule.out(0, a, f);
      }
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::layer_norm_backward(c.in(0), c.in(1), static_cast<int>(c.i("axes"_attr)), Array(), c.in(2), c.in(3),
                                   c.out(), nullptr, nullptr);
    });

HOLON_OP(rms_norm, "rms_norm(Tensor x, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor")
    .doc("x over the root of the mean of its squares along its last axes, of sizes normalized_shape, times weight. "
         "eps: 2^-23 (2^-52 for float64) unless given.",
         "rms_norm(ones(2, 3), [3])")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      int n = row_shape(c, 1).size();
      double eps = c.has("eps"_attr) ? c.f("eps"_attr) : c.in(0).dtype() == float64 ? 0x1p-52 : 0x1p-23;
      c.out.push_back(rms_norm_stats(c.in(0), c.in(1), n, eps)[0]);
    });
HOLON_OP(rms_norm_stats, "rms_norm_stats(Tensor x, Tensor? weight, int axes, float eps) -> (Tensor, Tensor)")
    .doc("rms_norm with the reciprocal root of each row.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims rows = c.shape(0);
      rows.resize(rows.size() - static_cast<int>(c.i("axes"_attr)));
      c.out(c.shape(0), c.dtype_of(0));
      c.out(rows, statistics_dtype(c.dtype_of(0)));
    })
    .rule([](RuleCall& r) {
      row_rule(r, static_cast<int>(r.i("axes"_attr)));
      if (given(r, 1)) pass_partial(r, {1}, {0});
    })
    .kernel([](KernelCall& c) {
      kernels::rms_norm(c.in(0), static_cast<int>(c.i("axes"_attr)), c.in(1), c.f("eps"_attr), c.out(0), c.out(1));
    })
    .saves({0, 1}, {1})
    .grad([](Grad& g) {
      if (!g.has_dy()) return;
      if (grad_enabled()) {
        grad_by_ops(g, g.y(1), false);
        return;
      }
      auto d = rms_norm_backward(g.dy(), g.x(0), g.y(1), g.x(1), g.i("axes"_attr));
      if (g.needs(0)) g.dx(0, d[0]);
      if (g.needs(1)) g.dx(1, d[1]);
    });
HOLON_OP(rms_norm_backward,
         "rms_norm_backward(Tensor dy, Tensor x, Tensor rstd, Tensor? weight, int axes) -> (Tensor, Tensor)")
    .doc("Gradients of rms_norm in x and weight.")
    .hidden()
    .infer([](Infer& c) {
      c.out(c.shape(1), c.dtype_of(1));
      c.out(columns_of(c, c.shape(1)), c.dtype_of(1));
    })
    .rule([](RuleCall& r) {
      row_backward_rule(r, {0, 1, 2});
      if (given(r, 3)) pass_partial(r, {3}, {0});
    })
    .linear_in({0})
    .sums_in_tree()
    .kernel([](KernelCall& c) {
      kernels::rms_norm_backward(c.in(0), c.in(1), static_cast<int>(c.i("axes"_attr)), c.in(3), c.in(2), c.out(0),
                                 &c.out(1));
    });

HOLON_OP(normalize, "normalize(Tensor x, float p=2.0, int dim=1, float eps=1e-12) -> Tensor")
    .doc("x over its p-norm along dim, or over eps where that is larger.", "normalize(ones(2, 3))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      double p = c.f("p"_attr);
      if (!(p > 0)) fail_value("normalize: p is {}; it must be positive.", p);
      if (!is_floating(x.dtype()))
        fail_type("normalize: x is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).",
                  name(x.dtype()));
      Dims dim{normalize_axis(c.i("dim"_attr), x.ndim(), "normalize")};
      Tensor norm = std::isinf(p) ? amax(abs(x), dim, true)
          : p == 2                ? sqrt(sum(square(x), dim, true))
          : p == 1                ? sum(abs(x), dim, true)
                                  : pow(sum(pow(abs(x), p), dim, true), 1 / p);
      c.out.push_back(div(x, clamp(norm, Scalar(c.f("eps"_attr)))));
    });

}  // namespace holon::ops
