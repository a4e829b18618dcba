// Order, search, and results whose shape the values decide. Sorting needs its axis whole on each rank; the others split
// freely. An op with a shape that the values decide takes the whole value on every rank (ops/whole.h), and its result
// is broadcast.
#include <algorithm>
#include <cmath>

#include "holon/base/fmt.h"
#include "holon/internal_ops/index.h"
#include "holon/internal_ops/index_axes.h"
#include "holon/internal_ops/sort.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/index.h"
#include "holon/kernels/search.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/index_axes.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/unary.h"
#include "holon/ops/values.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

int axis_of(const AttrReader& c, int ndim) { return normalize_axis(c.i("dim"_attr), ndim, c.op().public_name()); }

void along_rule(RuleCall& r) {
  int n = r.in[0].shape.size(), d = axis_of(r, n);
  if (n == 0) return identity_rule(r);
  for (int a = 0; a < n; ++a) {
    if (a == d) continue;
    int f = r.rule.factor();
    r.rule.in(0, a, f);
    for (size_t o = 0; o < r.out.size(); ++o) r.rule.out(o, a, f);
  }
}

Array axis_last(const Array& x, int axis) {
  if (x.ndim() == 0) return x;
  Array a = x;
  a.shape.erase(axis);
  a.strides.erase(axis);
  a.shape.push_back(x.shape[axis]);
  a.strides.push_back(x.strides[axis]);
  return a;
}

void order_grad(Grad& g) {
  if (!g.has_dy()) return;
  g.dx(0, g.in_shape().size() == 0 ? g.dy() : scatter_add_zeros(g.dy(), g.i("dim"_attr), g.y(1), g.in_shape()));
}

void require_searchable(const char* op, const Tensor& sorted, const Tensor& values) {
  if (sorted.ndim() == 0) fail_value("{}: the sorted sequence has no axis. Give at least one row.", op);
  if (sorted.ndim() > 1) {
    bool fits = sorted.ndim() == values.ndim();
    for (int a = 0; fits && a + 1 < sorted.ndim(); ++a) fits = sorted.shape()[a] == values.shape()[a];
    if (!fits)
      fail_value("{}: the leading axes of the sorted sequence {} are not those of the values {}. Give one row for all, "
                 "or one for each.",
                 op, sorted.shape(), values.shape());
  }
}

Tensor search(const BodyCall& c, Tensor sorted, Tensor values, bool right) {
  const char* op = c.op().public_name();
  require_searchable(op, sorted, values);
  DType common = promote(sorted.dtype(), values.dtype());
  if (sorted.dtype() != common) sorted = cast(sorted, common);
  if (values.dtype() != common) values = cast(values, common);
  return search_rows(sorted, values, right, c.b("out_int32"_attr));
}

bool to_the_right(const BodyCall& c) {
  if (!c.has("side"_attr)) return c.b("right"_attr);
  auto side = c.text("side"_attr);
  if (side != "left" && side != "right") fail_value("searchsorted: side is '{}'. It can be 'left' or 'right'.", side);
  if (side == "left" && c.b("right"_attr))
    fail_value("searchsorted: side 'left' and right=True contradict each other. Pass one of them.");
  return side == "right";
}

}  // namespace

HOLON_OP(sort,
         "sort(Tensor x, int dim=-1, bool descending=False, bool stable=False) -> (Tensor values, Tensor indices)")
    .doc("The elements along an axis in order, and their indices; equal ones keep their order. NaN sorts as the "
         "largest.",
         "sort(ones(3))")
    .infer([](Infer& c) {
      c.axis("dim"_attr);
      c.out(c.shape(0), c.dtype_of(0));
      c.out(c.shape(0), int64);
    })
    .rule(along_rule)
    .kernel([](KernelCall& c) {
      int d = axis_of(c, c.in(0).ndim());
      Array values = axis_last(c.out(0), d), indices = axis_last(c.out(1), d);
      kernels::sort(axis_last(c.in(0), d), c.b("descending"_attr), &values, indices);
    })
    .saves({}, {1})
    .grad(order_grad);
HOLON_OP(argsort, "argsort(Tensor x, int dim=-1, bool descending=False, bool stable=False) -> Tensor")
    .doc("The indices that put the elements along an axis in order.", "argsort(ones(3))")
    .body([](BodyCall& c) {
      axis_of(c, c.in(0).ndim());
      c.out.push_back(sort(c.in(0).detach(), c.i("dim"_attr), c.b("descending"_attr), c.b("stable"_attr)).indices);
    });
HOLON_OP(msort, "msort(Tensor x) -> Tensor")
    .doc("The elements along the first axis in order.", "msort(ones(3))")
    .body([](BodyCall& c) { c.out.push_back(sort(c.in(0), 0).values); });

HOLON_OP(topk,
         "topk(Tensor x, int k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor values, Tensor indices)")
    .doc("The k largest (or smallest) elements along an axis, in order, and their indices.", "topk(ones(3), 2)")
    .infer([](Infer& c) {
      int d = c.axis("dim"_attr);
      int64_t n = c.ndim(0) ? c.shape(0)[d] : 1, k = c.i("k"_attr);
      c.require(k >= 0 && k <= n, fmt::format("k = {} is not in [0, {}], the size of axis {}", k, n, c.i("dim"_attr)),
                "Choose another k.");
      Dims s = c.shape(0);
      if (c.ndim(0))
        s[d] = k;
      else
        c.require(k == 1, "a tensor without axes has one element", "Take k = 1.");
      c.out(s, c.dtype_of(0));
      c.out(s, int64);
    })
    .rule(along_rule)
    .kernel([](KernelCall& c) {
      int d = axis_of(c, c.in(0).ndim());
      Array values = axis_last(c.out(0), d), indices = axis_last(c.out(1), d);
      kernels::topk(axis_last(c.in(0), d), c.i("k"_attr), c.b("largest"_attr), values, indices);
    })
    .saves({}, {1})
    .grad(order_grad);

HOLON_OP(search_rows, "search_rows(Tensor sorted, Tensor values, bool right, bool out_int32) -> Tensor")
    .doc("The insertion points of values in sorted rows; both have the same dtype.")
    .hidden()
    .infer([](Infer& c) { c.out(c.shape(1), c.b("out_int32"_attr) ? int32 : int64); })
    .rule([](RuleCall& r) {
      int lead = r.in[0].shape.size() - 1;
      for (int a = 0; a < r.in[1].shape.size(); ++a) {
        int f = r.rule.factor();
        r.rule.in(1, a, f);
        r.rule.out(0, a, f);
        if (a < lead) r.rule.in(0, a, f);
      }
    })
    .kernel([](KernelCall& c) { kernels::searchsorted(c.in(0), c.in(1), c.b("right"_attr), c.out()); });
HOLON_OP(searchsorted,
         "searchsorted(Tensor sorted_sequence, Tensor values, *, bool out_int32=False, bool right=False, str? "
         "side=None) -> Tensor")
    .doc("For each value the index in its sorted row at which inserting it keeps the order: before equal elements, or "
         "after them if right. One row for all values, or one for each of their leading axes.",
         "searchsorted(arange(4), tensor([2, 9]))")
    .function_only()
    .wraps_numbers()
    .body([](BodyCall& c) { c.out.push_back(search(c, c.in(0), c.in(1), to_the_right(c))); });
HOLON_OP(bucketize, "bucketize(Tensor x, Tensor boundaries, *, bool out_int32=False, bool right=False) -> Tensor")
    .doc("The index of the bucket that each element falls into: boundaries[i - 1] < x <= boundaries[i], or <= and < if "
         "right.",
         "bucketize(ones(2), arange(3))")
    .body([](BodyCall& c) {
      if (c.in(1).ndim() != 1)
        fail_value("bucketize: boundaries {} must have one axis. Flatten them.", c.in(1).shape());
      c.out.push_back(search(c, c.in(1), c.in(0), c.b("right"_attr)));
    });

std::vector<Tensor> nonzero_columns(const Tensor& x) {
  Array whole = x.full().array();
  int64_t n = kernels::count_nonzero(whole);
  Array places = Array::empty({n, whole.ndim()}, int64, whole.device);
  kernels::nonzero(whole, places);
  std::vector<Tensor> columns;
  for (int a = 0; a < whole.ndim(); ++a)
    columns.push_back(beside(x, kernels::contiguous(places.view({n}, {whole.ndim()}, a))));
  return columns;
}

namespace {

Tensor nonzero_places(const Tensor& x) {
  Array whole = x.full().array();
  Array places = Array::empty({kernels::count_nonzero(whole), whole.ndim()}, int64, whole.device);
  kernels::nonzero(whole, places);
  return beside(x, places);
}

}  // namespace

HOLON_OP(nonzero, "nonzero(Tensor x) -> Tensor")
    .doc("The indices of the elements that are not 0, in order: int64 [n, axes]. Collective for a global tensor; the "
         "result is broadcast.",
         "nonzero(ones(2))")
    .body([](BodyCall& c) { c.out.push_back(nonzero_places(c.in(0))); });
HOLON_OP(nonzero_tuple, "nonzero_tuple(Tensor x, *, bool as_tuple) -> Tensor[]")
    .doc("The same as one index tensor for each axis.", "nonzero(ones(2), as_tuple=True)")
    .overload_of("nonzero")
    .unwraps("as_tuple")
    .body([](BodyCall& c) {
      if (!c.b("as_tuple"_attr)) return c.out.push_back(nonzero_places(c.in(0)));
      for (auto& t : nonzero_columns(c.in(0).ndim() ? c.in(0) : reshape(c.in(0), {1}))) c.out.push_back(t);
    });
HOLON_OP(argwhere, "argwhere(Tensor x) -> Tensor")
    .doc("The indices of the elements that are not 0: [n, axes of x], as nonzero().", "argwhere(ones(2))")
    .body([](BodyCall& c) { c.out.push_back(nonzero_places(c.in(0))); });
HOLON_OP(where_condition, "where_condition(Tensor condition) -> Tensor[]")
    .doc("The indices of the elements that are not 0, one tensor for each axis.", "where(ones(2) > 0)")
    .overload_of("where")
    .mask("condition")
    .body([](BodyCall& c) {
      for (auto& t : nonzero_columns(c.in(0).ndim() ? c.in(0) : reshape(c.in(0), {1}))) c.out.push_back(t);
    });

HOLON_OP(masked_select, "masked_select(Tensor x, Tensor mask) -> Tensor")
    .doc("The elements of x where mask is true, in order: [n]; the two are broadcast. Collective for global tensors.",
         "masked_select(ones(2), ones(2) > 0)")
    .mask("mask")
    .body([](BodyCall& c) {
      const Tensor &x = c.in(0), &mask = c.in(1);
      if (mask.dtype() != boolean)
        fail_type("masked_select: mask is {}; it must be bool. Compare first, e.g. mask != 0.", name(mask.dtype()));
      Dims shape = broadcast_shapes(x.shape(), mask.shape(), "masked_select");
      Tensor places = nonzero_columns(reshape(expand(mask, shape), {-1}))[0];
      c.out.push_back(index_axes({reshape(expand(x, shape), {-1}), places}, 0));
    });

HOLON_OP(unique,
         "unique(Tensor x, bool sorted=True, bool return_inverse=False, bool return_counts=False, int? dim=None) -> "
         "Tensor[]")
    .doc("The distinct elements in ascending order, or with dim the distinct slices along it; then, if requested, for "
         "each element of x its index among them, and the count of each. Collective for a global tensor; the results "
         "are broadcast.",
         "unique(ones(3))")
    .unwraps()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      Array whole = x.full().array();
      Dims slice_shape;
      int d = -1;
      if (c.has("dim"_attr)) {
        if (x.ndim() == 0) fail_value("unique: x has no axis. Leave dim out.");
        d = axis_of(c, x.ndim());
        Dims order{d};
        for (int a = 0; a < x.ndim(); ++a)
          if (a != d) order.push_back(a), slice_shape.push_back(x.shape()[a]);
        whole = kernels::contiguous(permute(Tensor::local(whole), order).array());
      }
      int64_t n = d >= 0 ? x.shape()[d] : x.numel(), width = slice_shape.numel();
      Array rows = whole.view({n, width}, {width, 1}), order = Array::empty({n}, int64, whole.device),
            group = Array::empty({n}, int64, whole.device);
      int64_t groups = kernels::unique_rows(rows, order, group);
      Array first = Array::empty({groups}, int64, whole.device), counts = Array::empty({groups}, int64, whole.device);
      // From the last row to the first, so that the first of each group is what stays.
      Array downwards = Array::empty({n}, int64, whole.device);
      kernels::arange(n - 1, -1, 0, downwards);
      kernels::scatter(kernels::ScatterOp::kSet, first, 0, n ? group.view({n}, {-1}, n - 1) : group, downwards);
      kernels::bincount(group, nullptr, counts);
      Array out = Array::empty({groups, width}, x.dtype(), whole.device);
      kernels::index_select(rows, 0, first, out);
      Dims shape = slice_shape;
      shape.insert(0, groups);
      out = out.view(shape, contiguous_strides(shape));
      if (d > 0) {
        Dims back;
        for (int a = 0; a < x.ndim(); ++a) back.push_back(a < d ? a + 1 : a == d ? 0 : a);
        out = kernels::contiguous(permute(Tensor::local(out), back).array());
      }
      c.out.push_back(beside(x, out));
      if (c.b("return_inverse"_attr))
        c.out.push_back(beside(x, d >= 0 ? group : group.view(x.shape(), contiguous_strides(x.shape()))));
      if (c.b("return_counts"_attr)) c.out.push_back(beside(x, counts));
    });

HOLON_OP(bincount, "bincount(Tensor x, Tensor? weights=None, int minlength=0) -> Tensor")
    .doc("The count of each number from 0 to the largest in x [n], or the sum of its weights; at least minlength "
         "entries. Collective for global tensors.",
         "bincount(tensor([0, 2, 2]))")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (x.ndim() != 1) fail_value("bincount: x is {}; it takes one axis. Flatten it.", x.shape());
      if (is_floating(x.dtype()))
        fail_type("bincount: x is {}; it counts integers. Convert it by to(int64).", name(x.dtype()));
      if (c.i("minlength"_attr) < 0)
        fail_value("bincount: minlength is {}; it cannot be negative.", c.i("minlength"_attr));
      Array whole = x.full().array(), weights;
      DType dtype = int64;
      if (c.present(1)) {
        if (c.in(1).shape() != x.shape())
          fail_value("bincount: weights {} and x {} differ in shape. Give one weight for each element.",
                     c.in(1).shape(), x.shape());
        dtype = c.in(1).dtype() == float32 ? float32 : float64;
        NoGradGuard no_grad;
        weights = cast(c.in(1), dtype).full().array();
      }
      Array out =
          Array::empty({std::max(kernels::largest_count(whole) + 1, c.i("minlength"_attr))}, dtype, whole.device);
      kernels::bincount(whole, c.present(1) ? &weights : nullptr, out);
      c.out.push_back(beside(x, out));
    });
HOLON_OP(histc, "histc(Tensor x, int bins=100, Scalar min=0, Scalar max=0) -> Tensor")
    .doc("The number of elements in each of the bins between min and max; if both are 0, between the smallest and the "
         "largest element.",
         "histc(arange(4.0), 2)")
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (!is_floating(x.dtype()))
        fail_type("histc: x is {}; it takes floating point tensors. Convert it first, e.g. x.to(float32).",
                  name(x.dtype()));
      if (c.i("bins"_attr) <= 0) fail_value("histc: bins is {}; it must be positive.", c.i("bins"_attr));
      double low = c.scalar("min"_attr).as_double(), high = c.scalar("max"_attr).as_double();
      if (low == high && x.numel() > 0) low = amin(x).item().as_double(), high = amax(x).item().as_double();
      if (low == high) low -= 1, high += 1;
      if (!std::isfinite(low) || !std::isfinite(high) || low > high)
        fail_value("histc: the range from {} to {} is not an interval. Give min < max.", low, high);
      Array whole = x.full().array(), out = Array::empty({c.i("bins"_attr)}, x.dtype(), whole.device);
      kernels::histc(whole, low, high, out);
      c.out.push_back(beside(x, out));
    });

namespace {

// The q-th quantiles of the rows along the last axis, whose elements are sorted, with NaNs behind the others.
Tensor quantile_of(const Tensor& sorted, double q, std::string_view interpolation, bool skip_nan) {
  int64_t n = sorted.shape().back();
  Tensor gone = isnan(sorted);
  Tensor count = sum(logical_not(gone), Dims{-1}, true);  // of the numbers in each row
  Tensor at = mul(cast(clamp(sub(count, 1), 0), float64), q);
  if (!skip_nan) at = full_like(at, q * static_cast<double>(n - 1));
  if (interpolation == "nearest") at = round(at);
  Tensor low = floor(at), high = ceil(at);
  if (interpolation == "higher") low = high;
  Tensor value = gather(sorted, -1, cast(low, int64));
  if (interpolation == "linear" || interpolation == "midpoint") {
    Tensor next = gather(sorted, -1, cast(high, int64));
    Tensor part =
        interpolation == "linear" ? cast(sub(at, low), sorted.dtype()) : cast(mul(ne(low, high), 0.5), sorted.dtype());
    value = add(value, mul(sub(next, value), part));
  }
  Tensor lost = skip_nan ? eq(count, 0) : any(gone, Dims{-1}, true);
  return masked_fill(value, lost, std::nan(""));
}

void quantile(BodyCall& c, const std::vector<double>& qs, bool list, bool skip_nan) {
  const Tensor& x = c.in(0);
  const char* op = c.op().public_name();
  if (x.dtype() != float32 && x.dtype() != float64)
    fail_type("{}: x is {}; it takes float32 and float64. Convert it first.", op, name(x.dtype()));
  auto interpolation = c.text("interpolation"_attr);
  bool known = false;
  for (auto* s : {"linear", "lower", "higher", "midpoint", "nearest"}) known |= interpolation == s;
  if (!known)
    fail_value("{}: interpolation is '{}'. It can be 'linear', 'lower', 'higher', 'midpoint' or 'nearest'.", op,
               interpolation);
  for (double q : qs)
    if (!(q >= 0 && q <= 1)) fail_value("{}: q = {} is not in [0, 1].", op, q);
  bool all = !c.has("dim"_attr);
  int d = all ? 0 : axis_of(c, x.ndim());
  Tensor rows = all || x.ndim() == 0 ? reshape(x, {-1}) : transpose(x, d, -1);
  if (rows.shape().back() == 0)
    fail_value("{}: x {} has no elements along the axis. Check the shape first.", op, x.shape());
  rows = sort(rows, -1).values;
  std::vector<Tensor> results;
  for (double q : qs) {
    Tensor v = quantile_of(rows, q, interpolation, skip_nan);  // [..., 1]
    if (all || x.ndim() == 0) {
      Dims s = c.b("keepdim"_attr) ? Dims::filled(x.ndim(), 1) : Dims();
      v = reshape(v, s);
    } else {
      v = transpose(v, d, -1);
      if (!c.b("keepdim"_attr)) v = squeeze(v, Dims{d});
    }
    results.push_back(v);
  }
  c.out.push_back(list ? stack(results, 0) : results[0]);
}

std::vector<double> numbers_of(const BodyCall& c) {
  const Tensor& q = c.in(1);
  if (q.ndim() > 1 || !is_floating(q.dtype()))
    fail_value("{}: q is {} {}; it takes one number or a one-dimensional tensor.", c.op().public_name(),
               name(q.dtype()), q.shape());
  return to_vector<double>(q);
}

}  // namespace

HOLON_OP(quantile,
         "quantile(Tensor x, float q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor")
    .doc("The value below which a fraction q of the elements along an axis, or of all, falls; NaN if any is NaN.",
         "quantile(arange(4.0), 0.5)")
    .body([](BodyCall& c) { quantile(c, {c.f("q"_attr)}, false, false); });
HOLON_OP(
    quantile_list,
    "quantile_list(Tensor x, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor")
    .doc("The same for each of q, along a new first axis.", "quantile(arange(4.0), tensor([0.25, 0.5]))")
    .overload_of("quantile")
    .body([](BodyCall& c) { quantile(c, numbers_of(c), c.in(1).ndim() == 1, false); });
HOLON_OP(nanquantile,
         "nanquantile(Tensor x, float q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor")
    .doc("quantile() of the elements that are not NaN.", "nanquantile(arange(4.0), 0.5)")
    .body([](BodyCall& c) { quantile(c, {c.f("q"_attr)}, false, true); });
HOLON_OP(
    nanquantile_list,
    "nanquantile_list(Tensor x, Tensor q, int? dim=None, bool keepdim=False, *, str interpolation='linear') -> Tensor")
    .doc("The same for each of q, along a new first axis.", "nanquantile(arange(4.0), tensor([0.25, 0.5]))")
    .overload_of("nanquantile")
    .body([](BodyCall& c) { quantile(c, numbers_of(c), c.in(1).ndim() == 1, true); });

}  // namespace holon::ops
