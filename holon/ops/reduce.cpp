// Reductions over axes. Sums turn a split along a reduced axis into a partial sum and let partial sums through; maxima and
// the like need their axis whole.
#include "holon/kernels/cpu/reduce.h"

#include "holon/kernels/cpu/copy.h"
#include "holon/ops/elementwise.h"

namespace holon::ops {
namespace {

using kernels::ReduceOp;

// Bit a: axis a is reduced. No dim: all are.
uint32_t reduced_axes(const AttrReader& c, int ndim) {
  uint32_t all = (1u << ndim) - 1;
  if (!c.has("dim")) return all;
  auto dims = c.ints("dim");
  if (dims.empty()) return all;
  uint32_t mask = 0;
  for (int64_t d : dims) {
    uint32_t bit = 1u << normalize_axis(d, ndim, c.op().name());
    if (mask & bit) fail_value("{}: axis {} stands twice in dim. Name each axis once.", c.op().name(), d);
    mask |= bit;
  }
  return mask & all;
}

Dims reduced_shape(const Dims& shape, uint32_t mask, bool keepdim) {
  Dims out;
  for (int a = 0; a < shape.size(); ++a) {
    if (!(mask >> a & 1)) out.push_back(shape[a]);
    else if (keepdim) out.push_back(1);
  }
  return out;
}

void reduce_rule(RuleCall& r, uint32_t mask, bool keepdim, bool is_sum) {
  int at = 0;
  for (int a = 0; a < r.in[0].shape.size(); ++a) {
    bool reduced = mask >> a & 1;
    if (!reduced || is_sum) {
      int f = r.rule.factor(reduced);
      r.rule.in(0, a, f);
      if (!reduced)
        for (size_t o = 0; o < r.out.size(); ++o) r.rule.out(o, at, f);
    }
    if (!reduced || keepdim) ++at;
  }
}

template <ReduceOp kOp>
void reduce_kernel(KernelCall& c) {
  kernels::reduce(kOp, c.in(0), reduced_axes(c, c.in(0).ndim()), c.out());
}

// dy with the reduced axes put back as size 1.
Tensor with_kept_axes(const Grad& g, const Tensor& t) {
  if (g.b("keepdim")) return t;
  Dims s = g.in_shape();
  uint32_t mask = reduced_axes(g, s.size());
  for (int a = 0; a < s.size(); ++a)
    if (mask >> a & 1) s[a] = 1;
  return reshape(t, s);
}

DType sum_dtype(const Infer& c) {
  return c.has("dtype") ? c.dtype("dtype") : is_floating(c.dtype_of(0)) ? c.dtype_of(0) : int64;
}

// The gradient of a maximum or minimum is shared among the elements that reach it.
void extremum_grad(Grad& g) {
  Tensor hit = cast(eq(g.x(), with_kept_axes(g, g.y())), g.dy().dtype());
  Tensor count = with_kept_axes(g, sum(hit, Dims(g.has("dim") ? g.ints("dim") : std::span<const int64_t>{}), g.b("keepdim")));
  g.dx(0, mul(hit, div(with_kept_axes(g, g.dy()), count)));
}

void require_elements(const Infer& c) {
  uint32_t mask = reduced_axes(c, c.ndim(0));
  for (int a = 0; a < c.ndim(0); ++a)
    c.require(!(mask >> a & 1) || c.shape(0)[a] > 0, "an axis without elements has no such value", "Check the shape first.");
}

void arg_infer(Infer& c) {
  Dims s;
  if (c.has("dim")) {
    int d = c.axis("dim");
    c.require(c.ndim(0) == 0 || c.shape(0)[d] > 0, "an axis without elements has no such value", "Check the shape first.");
    s = reduced_shape(c.shape(0), 1u << d, c.b("keepdim"));
  } else {
    c.require(c.shape(0).numel() > 0, "a tensor without elements has no such value", "Check the shape first.");
    if (c.b("keepdim")) s = Dims::filled(c.ndim(0), 1);
  }
  c.out(s, int64);
}

void arg_rule(RuleCall& r) {
  if (r.has("dim")) reduce_rule(r, 1u << normalize_axis(r.i("dim"), r.in[0].shape.size(), r.op().name()), r.b("keepdim"), false);
}

template <bool kMax>
void arg_kernel(KernelCall& c) {
  Array x = c.in(0);
  int axis = c.has("dim") ? normalize_axis(c.i("dim"), x.ndim(), c.op().name()) : 0;
  if (!c.has("dim") || x.ndim() == 0) {
    Array flat = Array::empty(x.shape, x.dtype);
    kernels::copy(x, flat);
    x = flat.view({x.numel()}, {1});
    axis = 0;
  }
  kernels::argreduce(kMax, x, axis, c.out());
}

}  // namespace

HOLON_OP(sum, "sum(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Sum over the axes dim, or all. Integers and bools are summed as int64.", "sum(ones(2, 3), 0)")
    .infer([](Infer& c) { c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim")), sum_dtype(c)); })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"), true); })
    .linear()
    .kernel(reduce_kernel<ReduceOp::Sum>)
    .grad([](Grad& g) { g.dx(0, expand(with_kept_axes(g, g.dy()), g.in_shape())); });

HOLON_OP(mean, "mean(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Mean over the axes dim, or all.", "mean(ones(2, 3), 0)")
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      if (c.has("dtype")) x = cast(x, c.dtype("dtype"));
      if (!is_floating(x.dtype()))
        fail_runtime("mean: x is {}; a mean is defined for floating point tensors. Convert it first, e.g. x.to(float32), or pass dtype.", name(x.dtype()));
      uint32_t mask = reduced_axes(c, x.ndim());
      int64_t n = 1;
      for (int a = 0; a < x.ndim(); ++a)
        if (mask >> a & 1) n *= x.shape()[a];
      std::optional<Dims> dim;
      if (c.has("dim")) dim = Dims(c.ints("dim"));
      // The count is the logical one, so that the mean of a split tensor is right as a partial sum.
      c.out.push_back(div_scalar(sum(x, dim, c.b("keepdim")), static_cast<double>(n)));
    });

HOLON_OP(prod, "prod(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("Product over the axes dim, or all. Integers are multiplied as int64.", "prod(ones(2, 3), 0)")
    .infer([](Infer& c) {
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim")), is_floating(c.dtype_of(0)) ? c.dtype_of(0) : int64);
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"), false); })
    .kernel(reduce_kernel<ReduceOp::Prod>)
    .saves({0}, {0})
    .grad([](Grad& g) { g.dx(0, div(mul(with_kept_axes(g, g.dy()), with_kept_axes(g, g.y())), g.x())); });

HOLON_OP(amax, "amax(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("The largest value over the axes dim, or all; NaN wins. Errors: no elements.", "amax(ones(2, 3), 0)")
    .infer([](Infer& c) {
      require_elements(c);
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim")), c.dtype_of(0));
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"), false); })
    .kernel(reduce_kernel<ReduceOp::Max>).saves({0}, {0}).grad(extremum_grad);
HOLON_OP(amin, "amin(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("The smallest value over the axes dim, or all; NaN wins. Errors: no elements.", "amin(ones(2, 3), 0)")
    .infer([](Infer& c) {
      require_elements(c);
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim")), c.dtype_of(0));
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"), false); })
    .kernel(reduce_kernel<ReduceOp::Min>).saves({0}, {0}).grad(extremum_grad);

HOLON_OP(any, "any(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("Whether some element over the axes dim is not zero.", "any(ones(2, 3), 0)")
    .infer([](Infer& c) { c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim")), boolean); })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"), false); })
    .kernel(reduce_kernel<ReduceOp::Any>);
HOLON_OP(all, "all(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("Whether every element over the axes dim is not zero.", "all(ones(2, 3), 0)")
    .infer([](Infer& c) { c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim")), boolean); })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"), false); })
    .kernel(reduce_kernel<ReduceOp::All>);

HOLON_OP(argmax, "argmax(Tensor x, int? dim=None, bool keepdim=False) -> Tensor")
    .doc("The index of the largest value along dim, the first of equals; without dim that in the flattened tensor. int64.", "argmax(ones(2, 3), 0)")
    .infer(arg_infer).rule(arg_rule).kernel(arg_kernel<true>);
HOLON_OP(argmin, "argmin(Tensor x, int? dim=None, bool keepdim=False) -> Tensor")
    .doc("The index of the smallest value along dim, the first of equals; without dim that in the flattened tensor. int64.", "argmin(ones(2, 3), 0)")
    .infer(arg_infer).rule(arg_rule).kernel(arg_kernel<false>);

HOLON_OP(var, "var(Tensor x, int[]? dim=None, bool unbiased=True, bool keepdim=False) -> Tensor")
    .doc("Variance over the axes dim, or all; divided by n - 1 if unbiased, else by n.", "var(ones(2, 3), 0)")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      uint32_t mask = reduced_axes(c, x.ndim());
      int64_t n = 1;
      Dims axes;
      for (int a = 0; a < x.ndim(); ++a)
        if (mask >> a & 1) {
          n *= x.shape()[a];
          axes.push_back(a);
        }
      Tensor d = square(sub(x, mean(x, axes, true)));
      double by = static_cast<double>(c.b("unbiased") ? n - 1 : n);
      c.out.push_back(div_scalar(sum(d, axes, c.b("keepdim")), by));
    });
HOLON_OP(std, "std(Tensor x, int[]? dim=None, bool unbiased=True, bool keepdim=False) -> Tensor")
    .doc("The square root of var().", "std(ones(2, 3), 0)")
    .body([](BodyCall& c) {
      std::optional<Dims> dim;
      if (c.has("dim")) dim = Dims(c.ints("dim"));
      c.out.push_back(sqrt(var(c.in(0), dim, c.b("unbiased"), c.b("keepdim"))));
    });

HOLON_OP(equal, "equal(Tensor x, Tensor other) -> Tensor")
    .doc("Whether both have one shape and the same elements: in Python a bool.", "equal(ones(2), ones(2))")
    .gives_number()
    .body([](BodyCall& c) {
      if (c.in(0).shape() != c.in(1).shape()) {
        FullOptions o{.dtype = boolean};
        if (c.in(0).is_global()) o.placement = c.in(0).placement(), o.sbp = NdSbp::filled(c.in(0).nd_sbp().size(), sbp::broadcast());
        c.out.push_back(full({}, false, o));
      } else {
        c.out.push_back(all(eq(c.in(0), c.in(1))));
      }
    });

}  // namespace holon::ops

namespace holon {
Tensor Tensor::sum() const { return holon::sum(*this); }
Tensor Tensor::mean() const { return holon::mean(*this); }
}  // namespace holon
