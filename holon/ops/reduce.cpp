// Reductions over axes. Sums turn a split along a reduced axis into a partial sum and let partial sums through; maxima
// and the like need their axis whole.
#include "holon/kernels/reduce.h"
#include "holon/internal_ops/index.h"
#include "holon/internal_ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "holon/base/fmt.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/index.h"
#include "holon/kernels/search.h"
#include "holon/kernels/sum_tree.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/asked_dtype.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/reduce.h"
#include "holon/ops/scan.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

using kernels::ReduceOp;

// Bit a: axis a is reduced. No dim: all are.
uint32_t reduced_axes(const AttrReader& c, int ndim) {
  uint32_t all = (1u << ndim) - 1;
  if (!c.has("dim"_attr)) return all;
  auto dims = c.ints("dim"_attr);
  if (dims.empty()) return all;
  uint32_t mask = 0;
  for (int64_t d : dims) {
    uint32_t bit = 1u << normalize_axis(d, ndim, c.op().public_name());
    if (mask & bit) fail_value("{}: axis {} appears twice in dim. Name each axis once.", c.op().public_name(), d);
    mask |= bit;
  }
  return mask & all;
}

Dims reduced_shape(const Dims& shape, uint32_t mask, bool keepdim) {
  Dims out;
  for (int a = 0; a < shape.size(); ++a) {
    if (!(mask >> a & 1))
      out.push_back(shape[a]);
    else if (keepdim)
      out.push_back(1);
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

template <ReduceOp kOp>
void reduce_as_kernel(KernelCall& c) {
  kernels::reduce(kOp, in_asked_dtype(c), reduced_axes(c, c.in(0).ndim()), c.out());
}

// Each term of a sum is a subtree of its own (OpBuilder::sums_in_tree).
int64_t each_term_apart(const CallShapes&) { return 2 * kernels::kSumLeaf; }

// dy with the reduced axes put back as size 1.
Tensor with_kept_axes(const Grad& g, const Tensor& t) {
  if (g.b("keepdim"_attr)) return t;
  Dims s = g.in_shape();
  uint32_t mask = reduced_axes(g, s.size());
  for (int a = 0; a < s.size(); ++a)
    if (mask >> a & 1) s[a] = 1;
  return reshape(t, s);
}

DType sum_dtype(const Infer& c) {
  return c.has("dtype"_attr) ? c.dtype("dtype"_attr) : is_floating(c.dtype_of(0)) ? c.dtype_of(0) : int64;
}

// The gradient of a maximum or minimum is shared among the elements that reach it.
void extremum_grad(Grad& g) {
  Tensor hit = cast(eq(g.x(), with_kept_axes(g, g.y())), g.dy().dtype());
  Tensor count = with_kept_axes(
      g, sum(hit, Dims(g.has("dim"_attr) ? g.ints("dim"_attr) : std::span<const int64_t>{}), g.b("keepdim"_attr)));
  g.dx(0, mul(hit, div(with_kept_axes(g, g.dy()), count)));
}

void require_elements(const Infer& c) {
  uint32_t mask = reduced_axes(c, c.ndim(0));
  for (int a = 0; a < c.ndim(0); ++a)
    c.require(!(mask >> a & 1) || c.shape(0)[a] > 0, "an axis without elements has no such value",
              "Check the shape first.");
}

void arg_infer(Infer& c) {
  Dims s;
  if (c.has("dim"_attr)) {
    int d = c.axis("dim"_attr);
    c.require(c.ndim(0) == 0 || c.shape(0)[d] > 0, "an axis without elements has no such value",
              "Check the shape first.");
    s = reduced_shape(c.shape(0), 1u << d, c.b("keepdim"_attr));
  } else {
    c.require(c.shape(0).numel() > 0, "a tensor without elements has no such value", "Check the shape first.");
    if (c.b("keepdim"_attr)) s = Dims::filled(c.ndim(0), 1);
  }
  c.out(s, int64);
}

void arg_rule(RuleCall& r) {
  if (r.has("dim"_attr))
    reduce_rule(r, 1u << normalize_axis(r.i("dim"_attr), r.in[0].shape.size(), r.op().name()), r.b("keepdim"_attr),
                false);
}

template <bool kMax>
void arg_kernel(KernelCall& c) {
  Array x = c.in(0);
  int axis = c.has("dim"_attr) ? normalize_axis(c.i("dim"_attr), x.ndim(), c.op().public_name()) : 0;
  if (!c.has("dim"_attr) || x.ndim() == 0) {
    Array flat = Array::empty(x.shape, x.dtype, x.device);
    kernels::copy(x, flat);
    x = flat.view({x.numel()}, {1});
    axis = 0;
  }
  kernels::argreduce(kMax, x, axis, c.out());
}

// The value and the place of one element per row: dy goes there.
void selected_grad(Grad& g) {
  if (!g.has_dy()) return;
  int d = normalize_axis(g.i("dim"_attr), g.in_shape().size(), g.op().public_name());
  if (g.in_shape().size() == 0) return g.dx(0, g.dy());
  Tensor dy = g.dy(), index = g.y(1);
  if (!g.b("keepdim"_attr)) dy = unsqueeze(dy, d), index = unsqueeze(index, d);
  g.dx(0, scatter_add_zeros(dy, d, index, g.in_shape()));
}

void selected_infer(Infer& c) {
  int d = c.axis("dim"_attr);
  c.require(c.ndim(0) == 0 || c.shape(0)[d] > 0, "an axis without elements has no such value",
            "Check the shape first.");
  Dims s = reduced_shape(c.shape(0), c.ndim(0) ? 1u << d : 0, c.b("keepdim"_attr));
  c.out(s, c.dtype_of(0));
  c.out(s, int64);
}

void selected_rule(RuleCall& r) {
  if (r.in[0].shape.size() == 0) return identity_rule(r);
  reduce_rule(r, 1u << normalize_axis(r.i("dim"_attr), r.in[0].shape.size(), r.op().public_name()), r.b("keepdim"_attr),
              false);
}

// x with the axis at the end, and room for the axis in an output that may lack it.
Array axis_last(const Array& x, int axis) {
  if (x.ndim() == 0) return x.view({1}, {1});
  Array a = x;
  a.shape.erase(axis);
  a.strides.erase(axis);
  a.shape.push_back(x.shape[axis]);
  a.strides.push_back(x.strides[axis]);
  return a;
}

// Writes the elements of x at one index per row of an axis.
void pick(const Array& x, int axis, const Array& index, Array& out) {
  Array from = axis_last(x, axis), at = index, to = out;
  bool kept = x.ndim() > 0 && index.ndim() == x.ndim();
  if (kept)
    at = axis_last(index, axis), to = axis_last(out, axis);
  else {
    at.shape.push_back(1), at.strides.push_back(1);
    to.shape.push_back(1), to.strides.push_back(1);
  }
  kernels::gather(from, from.ndim() - 1, at, to);
}

template <bool kMax>
void extremum_kernel(KernelCall& c) {
  int d = normalize_axis(c.i("dim"_attr), c.in(0).ndim(), c.op().public_name());
  if (c.in(0).ndim() == 0) {
    kernels::copy(c.in(0), c.out());
    return kernels::fill(c.out(1), Scalar(0));
  }
  kernels::argreduce(kMax, c.in(0), d, c.out(1));
  pick(c.in(0), d, c.out(1), c.out(0));
}

// Where in each of the sorted rows [..., n] its k-th element is; the first NaN instead where there is one and
// `nan_wins`. [rows, 1]
Array kth_places(const Array& sorted, int64_t k, bool nan_wins) {
  int64_t n = sorted.shape.back(), rows = n ? sorted.numel() / n : 0;
  Array places = Array::empty({rows, 1}, int64, sorted.device);
  if (!nan_wins || !is_floating(sorted.dtype)) {
    kernels::fill(places, k);
    return places;
  }
  Array nan = Array::empty({}, sorted.dtype, sorted.device), none = Array::empty({rows, 1}, boolean, sorted.device);
  kernels::fill(nan, std::numeric_limits<double>::quiet_NaN());
  kernels::searchsorted(sorted.view({rows, n}, {n, 1}), nan.view({rows, 1}, {0, 0}), false, places);
  kernels::binary_scalar(kernels::BinaryOp::Eq, places, n, none);
  kernels::masked_fill(places, none, k, places);
  return places;
}

// The k-th smallest (from 0) of each row, NaNs above all; the first NaN instead where there is one and `nan_wins`.
void kth_kernel(KernelCall& c, int64_t k, bool nan_wins) {
  int d = normalize_axis(c.i("dim"_attr), c.in(0).ndim(), c.op().public_name());
  Array x = axis_last(c.in(0), d);
  int64_t n = x.ndim() ? x.shape.back() : 1, rows = n ? x.numel() / n : 0;
  Array values = Array::empty(x.shape, x.dtype, x.device), order = Array::empty(x.shape, int64, x.device);
  kernels::sort(x, false, &values, order);
  Array at = Array::empty({rows, 1}, int64, x.device);
  kernels::gather(order.view({rows, n}, {n, 1}), 1, kth_places(values.view({rows, n}, {n, 1}), k, nan_wins), at);
  Array index = at.view(c.out(1).shape, contiguous_strides(c.out(1).shape));
  kernels::copy(index, c.out(1));
  if (c.in(0).ndim() == 0)
    kernels::copy(c.in(0), c.out(0));
  else
    pick(c.in(0), d, c.out(1), c.out(0));
}

std::optional<Dims> optional_dims(const AttrReader& c) {
  if (!c.has("dim"_attr)) return std::nullopt;
  return Dims(c.ints("dim"_attr));
}

int64_t reduced_count(const Dims& shape, uint32_t mask) {
  int64_t n = 1;
  for (int a = 0; a < shape.size(); ++a)
    if (mask >> a & 1) n *= shape[a];
  return n;
}

void require_floating_input(const BodyCall& c, const Tensor& x) {
  if (!is_floating(x.dtype()))
    fail_runtime("{}: x is {}; it is defined for floating point tensors. Convert it first, e.g. x.to(float32).",
                 c.op().public_name(), name(x.dtype()));
}

Tensor variance(const BodyCall& c, Tensor* average = nullptr) {
  const Tensor& x = c.in(0);
  require_floating_input(c, x);
  uint32_t mask = reduced_axes(c, x.ndim());
  Dims axes;
  for (int a = 0; a < x.ndim(); ++a)
    if (mask >> a & 1) axes.push_back(a);
  double correction = c.has("correction"_attr) ? c.scalar("correction"_attr).as_double() : c.b("unbiased"_attr) ? 1 : 0;
  Tensor m = mean(x, axes, true);
  // By the logical count, which a split does not change.
  double by = std::max(0.0, static_cast<double>(reduced_count(x.shape(), mask)) - correction);
  if (average) *average = c.b("keepdim"_attr) ? m : reshape(m, reduced_shape(x.shape(), mask, false));
  // The squares' sum has a gradient of one product, where square() and sum() have two. It is float32 of halves.
  Tensor v = div(sum_squares(sub(x, m), axes, c.b("keepdim"_attr)), by);
  return v.dtype() == x.dtype() ? v : cast(v, x.dtype());
}

}  // namespace

HOLON_OP(sum, "sum(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Sum over the axes dim, or all. Integers and bools are summed as int64.", "sum(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .infer([](Infer& c) {
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)), sum_dtype(c));
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), true); })
    .linear()
    .sums_in_tree(each_term_apart)
    .kernel(reduce_as_kernel<ReduceOp::Sum>)
    .grad([](Grad& g) {
      Tensor dy = expand(with_kept_axes(g, g.dy()), g.in_shape());
      g.dx(0, dy.dtype() == g.in_dtype() ? dy : cast(dy, g.in_dtype()));
    });

HOLON_OP(mean, "mean(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Mean over the axes dim, or all.", "mean(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      if (c.has("dtype"_attr)) x = cast(x, c.dtype("dtype"_attr));
      if (!is_floating(x.dtype()))
        fail_runtime("mean: x is {}; a mean is defined for floating point tensors. Convert it first, e.g. "
                     "x.to(float32), or pass dtype.",
                     name(x.dtype()));
      // The count is the logical one, so that the mean of a split tensor is right as a partial sum.
      int64_t n = reduced_count(x.shape(), reduced_axes(c, x.ndim()));
      c.out.push_back(div(sum(x, optional_dims(c), c.b("keepdim"_attr)), static_cast<double>(n)));
    });

HOLON_OP(nansum, "nansum(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Sum over the axes dim, or all, counting NaN as 0.", "nansum(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      SumOptions o;
      if (c.has("dtype"_attr)) o.dtype = c.dtype("dtype"_attr);
      c.out.push_back(
          sum(is_floating(x.dtype()) ? masked_fill(x, isnan(x), 0.0) : x, optional_dims(c), c.b("keepdim"_attr), o));
    });
HOLON_OP(nanmean, "nanmean(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Mean of the elements that are not NaN over the axes dim, or all; NaN if there are none.",
         "nanmean(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      if (c.has("dtype"_attr)) x = cast(x, c.dtype("dtype"_attr));
      require_floating_input(c, x);
      Tensor gone = isnan(x);
      Tensor n = sum(logical_not(gone), optional_dims(c), c.b("keepdim"_attr));
      c.out.push_back(div(sum(masked_fill(x, gone, 0.0), optional_dims(c), c.b("keepdim"_attr)), cast(n, x.dtype())));
    });

HOLON_OP(count_nonzero, "count_nonzero(Tensor x, int[]? dim=None) -> Tensor")
    .doc("How many elements over the axes dim, or of all, are not 0: int64.", "count_nonzero(ones(2, 3), 0)")
    .body([](BodyCall& c) {
      c.out.push_back(sum(c.in(0).dtype() == boolean ? c.in(0) : cast(c.in(0), boolean), optional_dims(c), false));
    });

HOLON_OP(prod, "prod(Tensor x, int[]? dim=None, bool keepdim=False, *, dtype? dtype=None) -> Tensor")
    .doc("Product over the axes dim, or all. Integers are multiplied as int64.", "prod(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .infer([](Infer& c) {
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)), sum_dtype(c));
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), false); })
    .kernel(reduce_as_kernel<ReduceOp::Prod>)
    .saves({0})
    .grad([](Grad& g) {
      // The product of the others, from both sides: right where elements are 0.
      Tensor x = g.x().dtype() == g.dy().dtype() ? g.x() : cast(g.x(), g.dy().dtype());
      Dims s = g.in_shape(), order, back, merged;
      uint32_t mask = reduced_axes(g, s.size());
      int64_t n = reduced_count(s, mask);
      for (int a = 0; a < s.size(); ++a)
        if (!(mask >> a & 1)) order.push_back(a), merged.push_back(s[a]);
      for (int a = 0; a < s.size(); ++a)
        if (mask >> a & 1) order.push_back(a);
      merged.push_back(n);
      Dims moved;
      for (int64_t a : order) moved.push_back(s[static_cast<int>(a)]);
      back.resize(s.size());
      for (int a = 0; a < s.size(); ++a) back[static_cast<int>(order[a])] = a;
      if (n == 0) return g.dx(0, zeros_like(x));
      Tensor rows = reshape(permute(x, order), merged);
      Tensor one = ones_like(slice(rows, -1, 0, 1));
      Tensor left = cat({one, slice(cumprod(rows, -1), -1, 0, n - 1)}, -1);
      Tensor right = cat({slice(flip(cumprod(flip(rows, {-1}), -1), {-1}), -1, 1, n), one}, -1);
      Tensor others = permute(reshape(mul(left, right), moved), back);
      Tensor dx = mul(expand(with_kept_axes(g, g.dy()), s), others);
      g.dx(0, dx.dtype() == g.in_dtype() ? dx : cast(dx, g.in_dtype()));
    });

HOLON_OP(amax, "amax(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("The largest value over the axes dim, or all; NaN if any is NaN. Errors: no elements.", "amax(ones(2, 3), 0)")
    .infer([](Infer& c) {
      require_elements(c);
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)), c.dtype_of(0));
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), false); })
    .kernel(reduce_kernel<ReduceOp::Max>)
    .saves({0}, {0})
    .grad(extremum_grad);
HOLON_OP(amin, "amin(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("The smallest value over the axes dim, or all; NaN if any is NaN. Errors: no elements.", "amin(ones(2, 3), 0)")
    .infer([](Infer& c) {
      require_elements(c);
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)), c.dtype_of(0));
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), false); })
    .kernel(reduce_kernel<ReduceOp::Min>)
    .saves({0}, {0})
    .grad(extremum_grad);
HOLON_OP(aminmax, "aminmax(Tensor x, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)")
    .doc("The smallest and the largest value along dim, or of all.", "aminmax(ones(2, 3))")
    .body([](BodyCall& c) {
      std::optional<Dims> dim;
      if (c.has("dim"_attr)) dim = Dims{normalize_axis(c.i("dim"_attr), c.in(0).ndim(), "aminmax")};
      if (c.in(0).numel() == 0)
        fail_value("aminmax: a tensor without elements has no such value: x is {}. Check the shape first.",
                   c.in(0).shape());
      c.out.push_back(amin(c.in(0), dim, c.b("keepdim"_attr)));
      c.out.push_back(amax(c.in(0), dim, c.b("keepdim"_attr)));
    });

HOLON_OP(max, "max(Tensor x) -> Tensor")
    .doc("The largest value of all; NaN if any is NaN. Errors: no elements.", "max(ones(2, 3))")
    .body([](BodyCall& c) { c.out.push_back(amax(c.in(0))); });
HOLON_OP(max_other, "max_other(Tensor x, Tensor other) -> Tensor")
    .doc("The larger of x and other, element by element, as maximum().", "max(ones(2), zeros(2))")
    .overload_of("max")
    .body([](BodyCall& c) { c.out.push_back(maximum(c.in(0), c.in(1))); });
HOLON_OP(max_dim, "max_dim(Tensor x, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)")
    .doc("The largest values along an axis, and the first index of each; NaN if any is NaN.", "max(ones(2, 3), 1)")
    .overload_of("max")
    .infer(selected_infer)
    .rule(selected_rule)
    .kernel(extremum_kernel<true>)
    .saves({}, {1})
    .grad(selected_grad);
HOLON_OP(min, "min(Tensor x) -> Tensor")
    .doc("The smallest value of all; NaN if any is NaN. Errors: no elements.", "min(ones(2, 3))")
    .body([](BodyCall& c) { c.out.push_back(amin(c.in(0))); });
HOLON_OP(min_other, "min_other(Tensor x, Tensor other) -> Tensor")
    .doc("The smaller of x and other, element by element, as minimum().", "min(ones(2), zeros(2))")
    .overload_of("min")
    .body([](BodyCall& c) { c.out.push_back(minimum(c.in(0), c.in(1))); });
HOLON_OP(min_dim, "min_dim(Tensor x, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)")
    .doc("The smallest values along an axis, and the first index of each; NaN if any is NaN.", "min(ones(2, 3), 1)")
    .overload_of("min")
    .infer(selected_infer)
    .rule(selected_rule)
    .kernel(extremum_kernel<false>)
    .saves({}, {1})
    .grad(selected_grad);

HOLON_OP(median, "median(Tensor x) -> Tensor")
    .doc("The lower median of all elements; NaN if any is NaN or there are no elements. Errors: an integer tensor "
         "without elements.",
         "median(ones(2, 3))")
    .infer([](Infer& c) {
      c.require(c.shape(0).numel() > 0 || is_floating(c.dtype_of(0)), "integers without elements have no median",
                "Check the shape first.");
      c.out({}, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      if (r.in[0].shape.size() == 0) identity_rule(r);
    })
    .kernel([](KernelCall& c) {
      Array flat = kernels::contiguous(c.in(0));
      int64_t n = flat.numel();
      if (n == 0) return kernels::fill(c.out(), std::numeric_limits<double>::quiet_NaN());
      flat = flat.view({n}, {1});
      Array values = Array::empty({1, n}, flat.dtype, flat.device), order = Array::empty({1, n}, int64, flat.device);
      kernels::sort(flat.view({1, n}, {n, 1}), false, &values, order);
      Array out = c.out().view({1, 1}, {1, 1});
      kernels::gather(values, 1, kth_places(values, (n - 1) / 2, true), out);
    })
    .saves({0}, {0})
    .grad([](Grad& g) {
      Tensor hit = cast(eq(g.x(), g.y()), g.dy().dtype());
      g.dx(0, mul(hit, div(g.dy(), sum(hit))));
    });
HOLON_OP(median_dim, "median_dim(Tensor x, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)")
    .doc("The lower medians along an axis, NaN if any is NaN, and their indices.", "median(ones(2, 3), 1)")
    .overload_of("median")
    .infer(selected_infer)
    .rule(selected_rule)
    .kernel([](KernelCall& c) {
      int d = normalize_axis(c.i("dim"_attr), c.in(0).ndim(), "median");
      kth_kernel(c, c.in(0).ndim() ? (c.in(0).shape[d] - 1) / 2 : 0, true);
    })
    .saves({}, {1})
    .grad(selected_grad);

HOLON_OP(kthvalue, "kthvalue(Tensor x, int k, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)")
    .doc("The k-th smallest values (from 1) along an axis, and their indices.", "kthvalue(ones(2, 3), 2)")
    .infer([](Infer& c) {
      int64_t n = c.ndim(0) ? c.shape(0)[c.axis("dim"_attr)] : 1;
      c.require(c.i("k"_attr) >= 1 && c.i("k"_attr) <= n,
                fmt::format("k = {} is not in [1, {}], the size of axis {}", c.i("k"_attr), n, c.i("dim"_attr)),
                "Choose another k.");
      selected_infer(c);
    })
    .rule(selected_rule)
    .kernel([](KernelCall& c) { kth_kernel(c, c.i("k"_attr) - 1, false); })
    .saves({}, {1})
    .grad(selected_grad);

HOLON_OP(any, "any(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("Whether some element over the axes dim is not zero.", "any(ones(2, 3), 0)")
    .infer([](Infer& c) { c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)), boolean); })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), false); })
    .kernel(reduce_kernel<ReduceOp::Any>);
HOLON_OP(all, "all(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("Whether every element over the axes dim is not zero.", "all(ones(2, 3), 0)")
    .infer([](Infer& c) { c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)), boolean); })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), false); })
    .kernel(reduce_kernel<ReduceOp::All>);

HOLON_OP(argmax, "argmax(Tensor x, int? dim=None, bool keepdim=False) -> Tensor")
    .doc("The index of the largest value along dim, the first among equals; without dim, in the flattened tensor. "
         "int64.",
         "argmax(ones(2, 3), 0)")
    .infer(arg_infer)
    .rule(arg_rule)
    .kernel(arg_kernel<true>);
HOLON_OP(argmin, "argmin(Tensor x, int? dim=None, bool keepdim=False) -> Tensor")
    .doc("The index of the smallest value along dim, the first among equals; without dim, in the flattened tensor. "
         "int64.",
         "argmin(ones(2, 3), 0)")
    .infer(arg_infer)
    .rule(arg_rule)
    .kernel(arg_kernel<false>);

HOLON_OP(logsumexp, "logsumexp(Tensor x, int[] dim, bool keepdim=False) -> Tensor")
    .doc("The logarithm of the sum of exp(x) over the axes dim, without overflow.", "logsumexp(ones(2, 3), 1)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      Tensor x = is_floating(c.in(0).dtype()) ? c.in(0) : cast(c.in(0), float32);
      uint32_t mask = reduced_axes(c, x.ndim());
      Dims dim(c.ints("dim"_attr)), out = reduced_shape(x.shape(), mask, c.b("keepdim"_attr));
      if (reduced_count(x.shape(), mask) == 0) return c.out.push_back(log(sum(exp(x), dim, c.b("keepdim"_attr))));
      // Any shift gives the same value; infinite ones give NaN.
      Tensor shift = amax(x.detach(), dim, true);
      shift = masked_fill(shift, logical_not(isfinite(shift)), 0.0);
      c.out.push_back(add(log(sum(exp(sub(x, shift)), dim, c.b("keepdim"_attr))), reshape(shift, out)));
    });

HOLON_OP(var,
         "var(Tensor x, int[]? dim=None, bool unbiased=True, bool keepdim=False, *, Scalar? correction=None) -> Tensor")
    .doc("Variance over the axes dim, or all: divided by n - correction, which is 1 if unbiased, else 0.",
         "var(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) { c.out.push_back(variance(c)); });
HOLON_OP(std,
         "std(Tensor x, int[]? dim=None, bool unbiased=True, bool keepdim=False, *, Scalar? correction=None) -> Tensor")
    .doc("The square root of var() over the axes dim, or all.", "std(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) { c.out.push_back(root(variance(c))); });
HOLON_OP(var_all, "var_all(Tensor x, bool unbiased) -> Tensor")
    .doc("Variance of all elements.", "var(ones(2, 3), False)")
    .overload_of("var")
    .python_only()
    .body([](BodyCall& c) { c.out.push_back(var(c.in(0), {}, c.b("unbiased"_attr))); });
HOLON_OP(std_all, "std_all(Tensor x, bool unbiased) -> Tensor")
    .doc("The square root of the variance of all elements.", "std(ones(2, 3), False)")
    .overload_of("std")
    .python_only()
    .body([](BodyCall& c) { c.out.push_back(std(c.in(0), {}, c.b("unbiased"_attr))); });
HOLON_OP(var_mean,
         "var_mean(Tensor x, int[]? dim=None, bool unbiased=True, bool keepdim=False, *, Scalar? correction=None) -> "
         "(Tensor, Tensor)")
    .doc("var() and mean() over the axes dim, or all.", "var_mean(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      Tensor m, v = variance(c, &m);
      c.out.push_back(v);
      c.out.push_back(m);
    });
HOLON_OP(std_mean,
         "std_mean(Tensor x, int[]? dim=None, bool unbiased=True, bool keepdim=False, *, Scalar? correction=None) -> "
         "(Tensor, Tensor)")
    .doc("std() and mean() over the axes dim, or all.", "std_mean(ones(2, 3), 0)")
    .autocast(Autocast::kFloat32)
    .body([](BodyCall& c) {
      Tensor m, v = variance(c, &m);
      c.out.push_back(root(v));
      c.out.push_back(m);
    });

HOLON_OP(equal, "equal(Tensor x, Tensor other) -> Tensor")
    .doc("Whether both have the same shape and elements; a bool in Python.", "equal(ones(2), ones(2))")
    .gives_number()
    .body([](BodyCall& c) {
      if (c.in(0).shape() != c.in(1).shape()) {
        FullOptions o{.dtype = boolean};
        if (c.in(0).is_global())
          o.placement = c.in(0).placement(), o.sbp = NdSbp::filled(c.in(0).nd_sbp().size(), sbp::broadcast());
        c.out.push_back(full({}, false, o));
      } else {
        c.out.push_back(all(eq(c.in(0), c.in(1))));
      }
    });

HOLON_OP(sum_squares, "sum_squares(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("The sum of squares over the axes dim, or all, of halves in float32.")
    .hidden()
    .infer([](Infer& c) {
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)),
            c.dtype_of(0) == float64 ? float64 : float32);
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), true); })
    .sums_in_tree(each_term_apart)
    .kernel(reduce_kernel<ReduceOp::SumSquares>)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, mul(g.x(), cast(mul(with_kept_axes(g, g.dy()), 2.0), g.in_dtype()))); });
HOLON_OP(sum_abs, "sum_abs(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor")
    .doc("The sum of absolute values over the axes dim, or all, of halves in float32.")
    .hidden()
    .infer([](Infer& c) {
      c.out(reduced_shape(c.shape(0), reduced_axes(c, c.ndim(0)), c.b("keepdim"_attr)),
            c.dtype_of(0) == float64 ? float64 : float32);
    })
    .rule([](RuleCall& r) { reduce_rule(r, reduced_axes(r, r.in[0].shape.size()), r.b("keepdim"_attr), true); })
    .sums_in_tree(each_term_apart)
    .kernel(reduce_kernel<ReduceOp::SumAbs>)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, mul(sign(g.x()), cast(with_kept_axes(g, g.dy()), g.in_dtype()))); });

}  // namespace holon::ops

namespace holon {
Tensor Tensor::sum() const { return holon::sum(*this); }
Tensor Tensor::mean() const { return holon::mean(*this); }
}  // namespace holon
