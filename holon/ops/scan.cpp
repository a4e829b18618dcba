// Running sums, products and extrema along an axis. The axis is whole on each rank; the others split freely.
#include "holon/kernels/scan.h"
#include "holon/internal_ops/index.h"
#include "holon/internal_ops/scan.h"
#include "holon/ops/create.h"
#include "holon/ops/unary.h"

#include <algorithm>
#include <limits>

#include "holon/kernels/copy.h"
#include "holon/kernels/reduce.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/asked_dtype.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/reduce.h"
#include "holon/ops/scan.h"
#include "holon/ops/shape.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

int scan_axis(const AttrReader& c, int ndim) { return normalize_axis(c.i("dim"_attr), ndim, c.op().public_name()); }

void scan_rule(RuleCall& r) {
  int n = r.in[0].shape.size(), d = scan_axis(r, n);
  if (n == 0) return identity_rule(r);
  for (int a = 0; a < n; ++a) {
    if (a == d) continue;
    int f = r.rule.factor();
    for (size_t i = 0; i < r.in.size(); ++i) r.rule.in(i, a, f);
    for (size_t o = 0; o < r.out.size(); ++o) r.rule.out(o, a, f);
  }
}

void sum_infer(Infer& c) {
  c.axis("dim"_attr);
  c.out(c.shape(0), c.has("dtype"_attr) ? c.dtype("dtype"_attr) : is_floating(c.dtype_of(0)) ? c.dtype_of(0) : int64);
}

void like_infer(Infer& c) {
  c.axis("dim"_attr);
  c.require_floating(0);
  c.out(c.shape(0), c.dtype_of(0));
}

void pair_infer(Infer& c) {
  c.axis("dim"_attr);
  c.out(c.shape(0), c.dtype_of(0));
  c.out(c.shape(0), int64);
}

void pair_grad(Grad& g) {
  if (!g.has_dy()) return;
  g.dx(0, g.in_shape().size() == 0 ? g.dy() : scatter_add_zeros(g.dy(), g.i("dim"_attr), g.y(1), g.in_shape()));
}

template <bool kMax>
void extremum(KernelCall& c) {
  kernels::cumextremum(kMax, c.in(0), scan_axis(c, c.in(0).ndim()), c.out(0), c.out(1));
}

Tensor as(const Tensor& t, DType dtype) { return t.dtype() == dtype ? t : cast(t, dtype); }

// Pairs (i, t) of n positions, [n, n], for which it is true.
template <class F>
Tensor pairs_where(const Tensor& like, int64_t n, F f) {
  Array a = Array::empty({n, n}, boolean);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t t = 0; t < n; ++t) a.data<bool>()[i * n + t] = f(i, t);
  return beside(like, a);
}

// The gradients as ops, for gradients of gradients: of n elements along dim they hold n^2. d y[t] / d x[i] is the
// product of the others up to t, and exp(x[i] - y[t]).
Tensor grad_by_pairs(Grad& g, bool product) {
  if (g.in_shape().size() == 0) return g.dy();
  const int d = scan_axis(g, g.in_shape().size());
  auto last = [&](const Tensor& t) { return transpose(t, d, -1); };
  const Tensor x = last(as(g.x(), g.dy().dtype())), dy = unsqueeze(last(g.dy()), -2);
  const int64_t n = x.shape().back();
  const Tensor early = pairs_where(x, n, [](int64_t i, int64_t t) { return t < i; });
  Tensor slopes;
  if (product) {
    const Tensor own = pairs_where(x, n, [](int64_t i, int64_t t) { return i == t; });
    slopes = masked_fill(cumprod(masked_fill(unsqueeze(x, -2), own, 1.0), -1), early, 0.0);
  } else {
    const Tensor away = sub(unsqueeze(x, -1), unsqueeze(last(g.y()), -2));
    slopes = exp(masked_fill(away, early, -std::numeric_limits<double>::infinity()));
  }
  return as(last(sum(mul(slopes, dy), Dims{-1})), g.in_dtype());
}

}  // namespace

HOLON_OP(cumsum, "cumsum(Tensor x, int dim, *, dtype? dtype=None) -> Tensor")
    .doc("Running sums along an axis. Integers and bools are summed as int64.", "cumsum(ones(2, 3), 1)")
    .autocast(Autocast::kFloat32)
    .infer(sum_infer)
    .rule(scan_rule)
    .linear()
    .kernel([](KernelCall& c) {
      if (c.in(0).ndim() == 0) return kernels::copy(c.in(0), c.out());
      kernels::cumsum(in_asked_dtype(c), scan_axis(c, c.in(0).ndim()), c.out());
    })
    .grad([](Grad& g) {
      int64_t d = g.i("dim"_attr);
      g.dx(0, as(g.in_shape().size() == 0 ? g.dy() : flip(cumsum(flip(g.dy(), {d}), d), {d}), g.in_dtype()));
    });

HOLON_OP(cumprod, "cumprod(Tensor x, int dim, *, dtype? dtype=None) -> Tensor")
    .doc("Running products along an axis. Integers and bools are multiplied as int64.", "cumprod(ones(2, 3), 1)")
    .autocast(Autocast::kFloat32)
    .infer(sum_infer)
    .rule(scan_rule)
    .kernel([](KernelCall& c) {
      if (c.in(0).ndim() == 0) return kernels::copy(c.in(0), c.out());
      kernels::cumprod(in_asked_dtype(c), scan_axis(c, c.in(0).ndim()), c.out());
    })
    .saves({0})
    .grad([](Grad& g) {
      if (grad_enabled()) return g.dx(0, grad_by_pairs(g, true));
      g.dx(0, as(cumprod_backward(g.dy(), as(g.x(), g.dy().dtype()), g.i("dim"_attr)), g.in_dtype()));
    });
HOLON_OP(cumprod_backward, "cumprod_backward(Tensor dy, Tensor x, int dim) -> Tensor")
    .doc("The gradient of cumprod, correct for elements that are 0.")
    .hidden()
    .infer(like_infer)
    .rule(scan_rule)
    .linear_in({0})
    .kernel([](KernelCall& c) { kernels::cumprod_backward(c.in(0), c.in(1), scan_axis(c, c.in(0).ndim()), c.out()); });

HOLON_OP(logcumsumexp, "logcumsumexp(Tensor x, int dim) -> Tensor")
    .doc("The logarithm of running sums of exp(x) along an axis, without overflow.", "logcumsumexp(ones(2, 3), 1)")
    .autocast(Autocast::kFloat32)
    .infer(like_infer)
    .rule(scan_rule)
    .kernel([](KernelCall& c) { kernels::logcumsumexp(c.in(0), scan_axis(c, c.in(0).ndim()), c.out()); })
    .saves({0}, {0})
    .grad([](Grad& g) {
      g.dx(0, grad_enabled() ? grad_by_pairs(g, false) : logcumsumexp_backward(g.dy(), g.x(), g.y(), g.i("dim"_attr)));
    });
HOLON_OP(logcumsumexp_backward, "logcumsumexp_backward(Tensor dy, Tensor x, Tensor y, int dim) -> Tensor")
    .doc("The gradient of logcumsumexp.")
    .hidden()
    .infer(like_infer)
    .rule(scan_rule)
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::logcumsumexp_backward(c.in(0), c.in(1), c.in(2), scan_axis(c, c.in(0).ndim()), c.out());
    });

HOLON_OP(cummax, "cummax(Tensor x, int dim) -> (Tensor values, Tensor indices)")
    .doc("The largest value so far along an axis, and where it was last seen.", "cummax(ones(2, 3), 1)")
    .infer(pair_infer)
    .rule(scan_rule)
    .kernel(extremum<true>)
    .saves({}, {1})
    .grad(pair_grad);
HOLON_OP(cummin, "cummin(Tensor x, int dim) -> (Tensor values, Tensor indices)")
    .doc("The smallest value so far along an axis, and where it was last seen.", "cummin(ones(2, 3), 1)")
    .infer(pair_infer)
    .rule(scan_rule)
    .kernel(extremum<false>)
    .saves({}, {1})
    .grad(pair_grad);

HOLON_OP(diff, "diff(Tensor x, int n=1, int dim=-1) -> Tensor")
    .doc("The differences of neighbours along an axis, applied n times.", "diff(arange(4))")
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      if (x.ndim() == 0) fail_value("diff: x has no axis. Give a tensor with one or more.");
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "diff");
      if (c.i("n"_attr) < 0) fail_value("diff: n = {} is negative.", c.i("n"_attr));
      // Where nothing is left, nothing more changes.
      for (int64_t k = 0; k < std::min(c.i("n"_attr), std::max<int64_t>(c.in(0).shape()[d], 1)); ++k) {
        int64_t size = x.shape()[d], last = std::max<int64_t>(size - 1, 0);
        Tensor after = slice(x, d, std::min<int64_t>(1, size), size), before = slice(x, d, 0, last);
        x = x.dtype() == boolean ? logical_xor(after, before) : sub(after, before);
      }
      c.out.push_back(x);
    });

}  // namespace holon::ops
