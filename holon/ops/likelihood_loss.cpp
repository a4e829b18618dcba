// Negative log-likelihoods of distributions whose parameters a model gives. They are made of element-wise ops.
#include <cmath>
#include <numbers>

#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/likelihood_loss.h"
#include "holon/ops/reduce.h"
#include "holon/ops/reduction.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/tensor/tracer.h"

namespace holon::ops {
namespace {

void require_floating(const BodyCall& c, size_t i, const char* what) {
  if (!is_floating(c.in(i).dtype()))
    fail_type("{}: {} is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).",
              c.op().name(), what, name(c.in(i).dtype()));
}

// At least eps, with the derivative that it has without the bound.
Tensor at_least(const Tensor& x, double eps) { return add(x, sub(maximum(x.detach(), eps), x.detach())); }

}  // namespace

HOLON_OP(poisson_nll_loss,
         "poisson_nll_loss(Tensor input, Tensor target, *, bool log_input=True, bool full=False, float eps=1e-08, str "
         "reduction='mean') -> Tensor")
    .doc("exp(input) - target input for the logarithms input [...] of a Poisson distribution's rates, or, unless "
         "log_input, input - target log(input + eps) for the rates. full: with Stirling's approximation of "
         "log(target!) where target is "
         "more than 1.",
         "poisson_nll_loss(ones(2), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      require_floating(c, 0, "input");
      const double eps = c.f("eps"_attr);
      if (!(eps >= 0)) fail_value("poisson_nll_loss: eps is {}; it must not be negative.", eps);
      const Tensor& x = c.in(0);
      Tensor t = c.in(1).dtype() == x.dtype() ? c.in(1) : cast(c.in(1), x.dtype());
      Tensor loss = c.b("log_input"_attr) ? sub(exp(x), mul(t, x)) : sub(x, mul(t, log(add(x, eps))));
      if (c.b("full"_attr)) {
        Tensor many = gt(t, 1.0), n = where(many, t, ones_like(t));
        Tensor stirling = add(sub(mul(n, log(n)), n), mul(log(mul(n, 2 * std::numbers::pi)), 0.5));
        loss = add(loss, where(many, stirling, zeros_like(stirling)));
      }
      c.out.push_back(reduced(c, loss));
    });

HOLON_OP(gaussian_nll_loss,
         "gaussian_nll_loss(Tensor input, Tensor target, Tensor var, bool full=False, float eps=1e-06, str "
         "reduction='mean') -> Tensor")
    .doc(
        "(log(var) + (input - target)^2 / var) / 2 for the means input [...] and variances var: [...], without the "
        "last "
        "axis, or with 1 for sizes. var is at least eps, but its gradient does not see the bound. full: plus log(2 pi) "
        "/ 2. Errors: a variance below 0.",
        "gaussian_nll_loss(ones(2, 3), zeros(2, 3), ones(2, 3))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      for (size_t i : {0, 1, 2}) require_floating(c, i, i == 0 ? "input" : i == 1 ? "target" : "var");
      const Tensor& x = c.in(0);
      Tensor var = c.in(2);
      const double eps = c.f("eps"_attr);
      if (!(eps > 0)) fail_value("gaussian_nll_loss: eps is {}; it must be positive.", eps);
      Dims rows = x.shape();
      if (rows.size() > 0) rows.resize(rows.size() - 1);
      if (var.shape() != x.shape() && var.shape() == rows) var = unsqueeze(var, -1);
      bool fits = var.ndim() == x.ndim();
      for (int a = 0; fits && a < x.ndim(); ++a) fits = var.shape()[a] == x.shape()[a] || var.shape()[a] == 1;
      if (!fits)
        fail_value(
            "gaussian_nll_loss: var is {}, input {}; var must be like input, without its last axis, or with 1 for "
            "some of its sizes.",
            c.in(2).shape(), x.shape());
      // The value is looked at where there is one: not while a graph is captured.
      if (!tracer() && var.numel() > 0 && any(lt(var.detach(), 0.0)).item().as_int() != 0)
        fail_value("gaussian_nll_loss: var has elements below 0; variances must not be negative. Pass exp() or "
                   "softplus() of what the model gives.");
      var = at_least(var, eps);
      Tensor loss = mul(add(log(var), div(square(sub(x, c.in(1))), var)), 0.5);
      if (c.b("full"_attr)) loss = add(loss, 0.5 * std::log(2 * std::numbers::pi));
      c.out.push_back(reduced(c, loss));
    });

}  // namespace holon::ops
