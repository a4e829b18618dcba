// Reading and writing by index. A table that is split along its rows (a vocabulary) is read by every rank for the rows
// that it holds, with zeros for the others: a partial sum, without communication in the op.
#include "holon/kernels/index.h"
#include "holon/internal_ops/index.h"
#include "holon/internal_ops/index_axes.h"

#include <algorithm>

#include "holon/kernels/copy.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/index_axes.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

void require_index_dtype(Infer& c, size_t i) {
  c.require_dtype(c.dtype_of(i) == int64 || c.dtype_of(i) == int32, "indices must be int64 or int32",
                  "Convert them by to(int64).");
}

int axis_of(const AttrReader& c, int ndim) { return normalize_axis(c.i("dim"_attr), ndim, c.op().public_name()); }

kernels::AxisPart part_of(const Dims& offset, const Dims& logical, int d) {
  return logical.size() ? kernels::AxisPart{offset[d], logical[d]} : kernels::AxisPart{};
}

// A single element as a row of one.
Array as_rows(const Array& a) { return a.ndim() ? a : a.view({1}, {1}); }

// Every axis but dim is shared by all operands.
void along_axis_rule(RuleCall& r) {
  int d = axis_of(r, r.in[0].shape.size());
  for (int a = 0; a < r.out[0].shape.size(); ++a) {
    if (a == d) continue;
    bool alike = true;
    for (auto& m : r.in) alike &= m.shape.size() == 0 || m.shape[a] == r.out[0].shape[a];
    if (!alike) continue;
    int f = r.rule.factor();
    r.rule.out(0, a, f);
    for (size_t i = 0; i < r.in.size(); ++i)
      if (r.in[i].shape.size()) r.rule.in(i, a, f);
  }
}

}  // namespace

HOLON_OP(embedding, "embedding(Tensor weight, Tensor indices, int? padding_idx=None) -> Tensor")
    .doc("Rows of weight [v, d] by indices of any shape: [..., d]. The row padding_idx gets no gradient. Errors: an "
         "index outside [0, v) (IndexError).",
         "embedding(ones(4, 3), zeros(2, dtype=int64))")
    .function_only()
    .infer([](Infer& c) {
      c.require(c.ndim(0) == 2, "weight must have two axes: [entries, features]", "Reshape it first.");
      require_index_dtype(c, 1);
      if (c.has("padding_idx"_attr))
        c.require(c.i("padding_idx"_attr) >= -c.shape(0)[0] && c.i("padding_idx"_attr) < c.shape(0)[0],
                  "padding_idx is not a row of weight", "Name one of its rows.");
      Dims out = c.shape(1);
      out.push_back(c.shape(0)[1]);
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int n = r.in[1].shape.size();
      for (int a = 0; a < n; ++a) {
        int f = r.rule.factor();
        r.rule.in(1, a, f);
        r.rule.out(0, a, f);
      }
      int d = r.rule.factor();
      r.rule.in(0, 1, d);
      r.rule.out(0, n, d);
      r.rule.in(0, 0, r.rule.factor(true));  // the vocabulary: the kernel knows which rows it holds
    })
    .linear_in({0})
    .sums_one_term()
    .kernel([](KernelCall& c) { kernels::embedding(c.in(0), c.in(1), c.offset_in(0)[0], c.logical_in(0)[0], c.out()); })
    .saves({1})
    .grad([](Grad& g) {
      if (!g.needs(0)) return;
      Tensor dy = g.dy();
      int64_t rows = g.in_shape(0)[0];
      if (g.has("padding_idx"_attr)) {
        int64_t row = g.i("padding_idx"_attr) < 0 ? g.i("padding_idx"_attr) + rows : g.i("padding_idx"_attr);
        dy = masked_fill(dy, unsqueeze(eq(g.x(1), row), -1), 0);
      }
      g.dx(0, embedding_backward(dy, g.x(1), rows));
    });
HOLON_OP(embedding_backward, "embedding_backward(Tensor dy, Tensor indices, int rows) -> Tensor")
    .doc("dy [..., d] added up by row: [rows, d].")
    .hidden()
    .infer([](Infer& c) {
      c.out({c.i("rows"_attr), c.shape(0).back()}, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int n = r.in[1].shape.size();
      for (int a = 0; a < n; ++a) {
        int f = r.rule.factor(true);
        r.rule.in(0, a, f);
        r.rule.in(1, a, f);
      }
      int d = r.rule.factor();
      r.rule.in(0, n, d);
      r.rule.out(0, 1, d);
      r.rule.out(0, 0, r.rule.factor());
    })
    .linear_in({0})
    .sums_in_tree()
    .kernel([](KernelCall& c) {
      kernels::embedding_backward(c.in(0), c.in(1), c.offset_out()[0], c.logical_out()[0], c.out());
    })
    .kernel_that_adds([](KernelCall& c) {
      kernels::embedding_backward(c.in(0), c.in(1), c.offset_out()[0], c.logical_out()[0], c.out(), true);
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, embedding(g.dy(), g.x(1)));
    });

HOLON_OP(index_select, "index_select(Tensor x, int dim, Tensor index) -> Tensor")
    .doc("The slices of x at the given indices along an axis. Errors: an index out of range (IndexError).",
         "index_select(ones(3, 2), 0, zeros(2, dtype=int64))")
    .takes_float8()
    .infer([](Infer& c) {
      c.require(c.ndim(1) <= 1 && c.ndim(0) > 0, "index has more than one axis, or x has none", "Flatten the index.");
      require_index_dtype(c, 1);
      Dims out = c.shape(0);
      out[c.axis("dim"_attr)] = c.shape(1).numel();
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int d = axis_of(r, r.in[0].shape.size());
      for (int a = 0; a < r.out[0].shape.size(); ++a) {
        if (a == d && r.in[1].shape.size() == 0) continue;  // one element, which nothing divides
        int f = r.rule.factor();
        r.rule.out(0, a, f);
        if (a != d)
          r.rule.in(0, a, f);
        else
          r.rule.in(1, 0, f);
      }
      if (r.in[0].dtype != boolean) r.rule.in(0, d, r.rule.factor(true));
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      int d = axis_of(c, c.in(0).ndim());
      kernels::index_select(c.in(0), d, c.in(1), c.out(), part_of(c.offset_in(0), c.logical_in(0), d));
    })
    .saves({1})
    .grad([](Grad& g) {
      g.dx(0, index_add_zeros(g.dy(), g.i("dim"_attr), g.x(1), g.in_shape(0)[axis_of(g, g.in_shape(0).size())]));
    });
HOLON_OP(index_add_zeros, "index_add_zeros(Tensor dy, int dim, Tensor index, int size) -> Tensor")
    .doc("The slices of dy added up at the given indices along an axis of the given size.")
    .hidden()
    .infer([](Infer& c) {
      Dims out = c.shape(0);
      out[c.axis("dim"_attr)] = c.i("size"_attr);
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int d = axis_of(r, r.in[0].shape.size());
      for (int a = 0; a < r.out[0].shape.size(); ++a) {
        if (a == d && r.in[1].shape.size() == 0) continue;
        int f = r.rule.factor(a == d);
        r.rule.in(0, a, f);
        if (a != d)
          r.rule.out(0, a, f);
        else
          r.rule.in(1, 0, f);
      }
      r.rule.out(0, d, r.rule.factor());
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      int d = axis_of(c, c.out().ndim());
      kernels::fill(c.out(), Scalar(0));
      kernels::index_add(c.out(), d, c.in(1), c.in(0), part_of(c.offset_out(), c.logical_out(), d));
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, index_select(g.dy(), g.i("dim"_attr), g.x(1)));
    });

HOLON_OP(gather, "gather(Tensor x, int dim, Tensor index) -> Tensor")
    .doc("out[i][j] = x[index[i][j]][j] for dim 0, and so on for others. Errors: an index out of range (IndexError).",
         "gather(ones(3, 2), 0, zeros(1, 2, dtype=int64))")
    .takes_float8()
    .infer([](Infer& c) {
      require_index_dtype(c, 1);
      // A single element is a row of one.
      c.require(std::max(c.ndim(0), 1) == std::max(c.ndim(1), 1), "index and x have different numbers of axes",
                "Unsqueeze one of them.");
      int d = c.axis("dim"_attr);
      for (int a = 0; a < c.ndim(0) && a < c.ndim(1); ++a)
        c.require(a == d || c.shape(1)[a] <= c.shape(0)[a], "index is larger than x outside dim", "Slice it.");
      c.out(c.shape(1), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      if (r.in[0].shape.size() != r.in[1].shape.size()) {
        if (r.in[0].shape.size() && r.in[0].dtype != boolean) r.rule.in(0, 0, r.rule.factor(true));
        if (r.in[1].shape.size()) {
          int f = r.rule.factor();
          r.rule.in(1, 0, f);
          r.rule.out(0, 0, f);
        }
        return;
      }
      along_axis_rule(r);
      // Along dim itself the index may be split: every rank looks up its own entries in the whole x.
      int d = axis_of(r, r.in[0].shape.size());
      if (r.out[0].shape.size() == 0) return;
      int f = r.rule.factor();
      r.rule.in(1, d, f);
      r.rule.out(0, d, f);
      if (r.in[0].dtype != boolean) r.rule.in(0, d, r.rule.factor(true));
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      int d = axis_of(c, c.in(0).ndim());
      Array out = as_rows(c.out());
      kernels::gather(as_rows(c.in(0)), d, as_rows(c.in(1)), out, part_of(c.offset_in(0), c.logical_in(0), d));
    })
    .saves({1})
    .grad([](Grad& g) { g.dx(0, scatter_add_zeros(g.dy(), g.i("dim"_attr), g.x(1), g.in_shape(0))); });
HOLON_OP(scatter_add_zeros, "scatter_add_zeros(Tensor dy, int dim, Tensor index, int[] shape) -> Tensor")
    .doc("The gradient of gather: dy added up at its indices in zeros of the given shape.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape"_attr)), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      if (r.in[0].shape.size() != r.out[0].shape.size()) {
        if (r.out[0].shape.size()) r.rule.out(0, 0, r.rule.factor());
        if (r.in[0].shape.size()) {
          int f = r.rule.factor(true);
          r.rule.in(0, 0, f);
          r.rule.in(1, 0, f);
        }
        return;
      }
      along_axis_rule(r);
      int d = axis_of(r, r.in[0].shape.size());
      if (r.out[0].shape.size() == 0) return;
      int f = r.rule.factor(true);
      r.rule.in(0, d, f);
      r.rule.in(1, d, f);
      r.rule.out(0, d, r.rule.factor());
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      int d = axis_of(c, c.out().ndim());
      kernels::fill(c.out(), Scalar(0));
      Array out = as_rows(c.out());
      kernels::scatter(kernels::ScatterOp::kAdd, out, d, as_rows(c.in(1)), as_rows(c.in(0)),
                       part_of(c.offset_out(), c.logical_out(), d));
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, gather(g.dy(), g.i("dim"_attr), g.x(1)));
    });

HOLON_OP(scatter_along,
         "scatter_along(Tensor x, Tensor index, Tensor src, int dim, str mode, str caller='scatter') -> Tensor")
    .doc("x with src set, added or multiplied in ('set', 'add', 'multiply') at the indices along an axis; index and "
         "src have one shape.")
    .hidden()
    .infer([](Infer& c) {
      require_index_dtype(c, 1);
      c.require_dtype(c.dtype_of(0) == c.dtype_of(2), "x and src have different dtypes",
                      "Convert one of them by to().");
      c.require(c.ndim(0) == c.ndim(1) && c.ndim(1) == c.ndim(2), "x, index and src have different numbers of axes",
                "Unsqueeze the smaller ones.");
      int d = c.axis("dim"_attr);
      for (int a = 0; a < c.ndim(0); ++a) {
        c.require(c.shape(1)[a] == c.shape(2)[a], "index is larger than src", "Expand src.");
        c.require(a == d || c.shape(1)[a] <= c.shape(0)[a], "index is larger than x outside dim", "Slice it.");
      }
      c.out(c.shape(0), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      along_axis_rule(r);
      auto add = [&](Sbp x, Sbp index, Sbp src, Sbp out) {
        Signature s;
        s.in.push_back(x), s.in.push_back(index), s.in.push_back(src), s.out.push_back(out);
        r.rule.add(s);
      };
      Sbp b = sbp::broadcast(), p = sbp::partial_sum();
      int n = r.in[0].shape.size(), d = axis_of(r, n);
      if (n > 0) {  // each rank writes what it holds
        int f = r.rule.factor();
        r.rule.in(0, d, f);
        r.rule.out(0, d, f);
      }
      bool adds = r.text("mode"_attr) == "add";
      if (r.text("mode"_attr) == "multiply") return add(p, b, b, p);
      add(p, b, p, p);
      if (adds && n > 0) add(p, sbp::split(d), sbp::split(d), p);
    })
    .kernel([](KernelCall& c) {
      int d = axis_of(c, c.out().ndim());
      auto mode = c.text("mode"_attr);
      kernels::copy(c.in(0), c.out());
      kernels::scatter(mode == "set"       ? kernels::ScatterOp::kSet
                           : mode == "add" ? kernels::ScatterOp::kAdd
                                           : kernels::ScatterOp::kMultiply,
                       c.out(), d, c.in(1), c.in(2), part_of(c.offset_out(), c.logical_out(), d),
                       c.text("caller"_attr).data());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      auto mode = g.text("mode"_attr);
      int64_t d = g.i("dim"_attr);
      const Tensor& index = g.x(1);
      Tensor dy = g.dy();
      if (mode == "multiply") {
        // Factors of one element are each other's gradients: by division, which has no answer where they are 0.
        if (g.needs(0)) g.dx(0, scatter_along(dy, index, g.x(2), d, "multiply"));
        if (g.needs(2))
          g.dx(2, div(gather(mul(dy, scatter_along(g.x(0), index, g.x(2), d, "multiply")), d, index), g.x(2)));
        return;
      }
      if (g.needs(0)) g.dx(0, mode == "add" ? dy : scatter_along(dy, index, zeros_like(g.x(2)), d, "set"));
      if (g.needs(2)) g.dx(2, gather(dy, d, index));
    });

namespace {

Tensor scatter_into(const BodyCall& c, const Tensor& x, const Tensor& index, Tensor src, std::string_view mode) {
  const char* op = c.op().public_name();
  if (src.ndim() != index.ndim() || x.ndim() != index.ndim())
    fail_value("{}: x {}, index {} and src {} must have the same number of axes. Unsqueeze the smaller ones.", op,
               x.shape(), index.shape(), src.shape());
  if (index.dtype() != int64 && index.dtype() != int32)
    fail_type("{}: indices are {}; they must be int64 or int32. Convert them by to(int64).", op, name(index.dtype()));
  if (src.dtype() != x.dtype())
    fail_type("{}: x and src have different dtypes: {} and {}. Convert one of them by to().", op, name(x.dtype()),
              name(src.dtype()));
  for (int a = 0; a < index.ndim(); ++a) {
    if (index.shape()[a] > src.shape()[a])
      fail_value("{}: index {} is larger than src {} along axis {}. Slice the index.", op, index.shape(), src.shape(),
                 a);
    if (index.shape()[a] < src.shape()[a]) src = slice(src, a, 0, index.shape()[a]);
  }
  return scatter_along(x, index, src, normalize_axis(c.i("dim"_attr), x.ndim(), op), mode, op);
}

std::string_view scatter_mode(const BodyCall& c) {
  if (!c.has("reduce"_attr)) return "set";
  auto r = c.text("reduce"_attr);
  if (r != "add" && r != "multiply") fail_value("scatter: reduce is '{}'. It can be None, 'add' or 'multiply'.", r);
  return r;
}

}  // namespace

HOLON_OP(scatter, "scatter(Tensor x, int dim, Tensor index, Tensor src, *, str? reduce=None) -> Tensor")
    .doc("x with out[index[i][j]][j] = src[i][j] for dim 0, and so on for others; reduce 'add' or 'multiply' combines "
         "instead of replacing. Errors: an index out of range (IndexError).",
         "scatter(zeros(3), 0, tensor([1]), ones(1))")
    .autocast(Autocast::kPromote)
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(scatter_into(c, c.in(0), c.in(1), c.in(2), scatter_mode(c))); });
HOLON_OP(scatter_value, "scatter_value(Tensor x, int dim, Tensor index, Scalar value, *, str? reduce=None) -> Tensor")
    .doc("x [...] with value at the indices [...] along axis dim.", "scatter(zeros(3), 0, tensor([1]), 0.5)")
    .overload_of("scatter")
    .in_place()
    .body([](BodyCall& c) {
      Tensor value = expand(number_beside(c.in(0), c.scalar("value"_attr)), c.in(1).shape());
      c.out.push_back(scatter_into(c, c.in(0), c.in(1), value, scatter_mode(c)));
    });
HOLON_OP(scatter_add, "scatter_add(Tensor x, int dim, Tensor index, Tensor src) -> Tensor")
    .doc("x with out[index[i][j]][j] += src[i][j] for dim 0, and so on for others. Errors: an index out of range "
         "(IndexError).",
         "scatter_add(zeros(3), 0, tensor([1, 1]), ones(2))")
    .autocast(Autocast::kPromote)
    .in_place()
    .body([](BodyCall& c) { c.out.push_back(scatter_into(c, c.in(0), c.in(1), c.in(2), "add")); });

HOLON_OP(index_add, "index_add(Tensor x, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor")
    .doc("x with alpha times the slices of source added at the indices along an axis. Errors: an index out of range "
         "(IndexError).",
         "index_add(zeros(3), 0, tensor([1, 1]), ones(2))")
    .autocast(Autocast::kPromote)
    .in_place()
    .body([](BodyCall& c) {
      const Tensor &x = c.in(0), &index = c.in(1), &source = c.in(2);
      Dims want = x.shape();
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "index_add");
      if (x.ndim()) want[d] = index.numel();
      if (index.ndim() > 1 || source.shape() != want)
        fail_value("index_add: source has shape {} and index {}; for x {} and dim {} source must be {}.",
                   source.shape(), index.shape(), x.shape(), d, want);
      if (source.dtype() != x.dtype())
        fail_type("index_add: source is {}, x is {}. Convert one of them by to().", name(source.dtype()),
                  name(x.dtype()));
      if (x.ndim() == 0) fail_value("index_add: x has no axis. Use add().");
      double alpha = c.scalar("alpha"_attr).as_double();
      Tensor s = alpha == 1 ? source : mul(source, c.scalar("alpha"_attr));
      c.out.push_back(add(x, index_add_zeros(s, d, index, x.shape()[d])));
    });
HOLON_OP(index_copy, "index_copy(Tensor x, int dim, Tensor index, Tensor source) -> Tensor")
    .doc("x with the slices of source at the indices along an axis. Errors: an index out of range (IndexError).",
         "index_copy(zeros(3), 0, tensor([1]), ones(1))")
    .in_place()
    .body([](BodyCall& c) {
      const Tensor &x = c.in(0), &index = c.in(1), &source = c.in(2);
      if (x.ndim() == 0) fail_value("index_copy: x has no axis. Use copy_().");
      Dims want = x.shape();
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "index_copy");
      want[d] = index.numel();
      if (index.ndim() > 1 || source.shape() != want)
        fail_value("index_copy: source has shape {} and index {}; for x {} and dim {} source must be {}.",
                   source.shape(), index.shape(), x.shape(), d, want);
      c.out.push_back(index_put_axes({x, source, reshape(index, {-1})}, d, false, false, "index_copy"));
    });
HOLON_OP(index_fill, "index_fill(Tensor x, int dim, Tensor index, Scalar value) -> Tensor")
    .doc(
        "x with the slices at the indices along an axis filled with value. Errors: an index out of range (IndexError).",
        "index_fill(zeros(3), 0, tensor([1]), 0.5)")
    .in_place()
    .body([](BodyCall& c) {
      const Tensor &x = c.in(0), &index = c.in(1);
      if (x.ndim() == 0) fail_value("index_fill: x has no axis. Use fill_().");
      if (index.ndim() > 1) fail_value("index_fill: index {} has more than one axis. Flatten it.", index.shape());
      Dims shape = x.shape();
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "index_fill");
      shape[d] = index.numel();
      c.out.push_back(index_put_axes({x, expand(number_beside(x, c.scalar("value"_attr)), shape), reshape(index, {-1})},
                                     d, false, false, "index_fill"));
    });

HOLON_OP(take, "take(Tensor x, Tensor index) -> Tensor")
    .doc("The elements of the flattened x at the indices, in index's shape; negative ones count from the end.",
         "take(ones(2, 3), tensor([5]))")
    .body([](BodyCall& c) {
      c.out.push_back(index_axes({reshape(c.in(0), {-1}), c.in(1)}, 0, true, "take"));
    });
HOLON_OP(take_along_dim, "take_along_dim(Tensor x, Tensor indices, int? dim=None) -> Tensor")
    .doc("gather() with indices and x broadcast against each other outside dim; without dim, of the flattened ones.",
         "take_along_dim(ones(2, 3), zeros(2, 1, dtype=int64), 1)")
    .body([](BodyCall& c) {
      Tensor x = c.in(0), index = c.in(1);
      if (!c.has("dim"_attr)) {
        c.out.push_back(gather(reshape(x, {-1}), 0, reshape(index, {-1})));
        return;
      }
      if (x.ndim() != index.ndim())
        fail_value("take_along_dim: x {} and indices {} must have the same number of axes. Unsqueeze the smaller one.",
                   x.shape(), index.shape());
      int d = normalize_axis(c.i("dim"_attr), x.ndim(), "take_along_dim");
      Dims to_x = x.shape(), to_index = index.shape();
      if (x.ndim() > 0) to_x[d] = to_index[d] = 1;
      Dims common = broadcast_shapes(to_x, to_index, "take_along_dim");
      to_x = to_index = common;
      if (x.ndim() > 0) to_x[d] = x.shape()[d], to_index[d] = index.shape()[d];
      c.out.push_back(gather(expand(x, to_x), d, expand(index, to_index)));
    });
HOLON_OP(batch_gather, "batch_gather(Tensor x, Tensor indices) -> Tensor")
    .doc("For each of the leading axes of indices [b..., k] the slices of x [b..., n, ...] at them: [b..., k, ...].",
         "batch_gather(ones(2, 3, 4), zeros(2, 1, dtype=int64))")
    .body([](BodyCall& c) {
      const Tensor &x = c.in(0), &indices = c.in(1);
      int d = indices.ndim() - 1;
      bool fits = d >= 0 && x.ndim() > d;
      for (int a = 0; fits && a < d; ++a) fits = x.shape()[a] == indices.shape()[a];
      if (!fits)
        fail_value("batch_gather: the leading axes of indices {} are not those of x {}. Give indices [b..., k] for x "
                   "[b..., n, ...].",
                   indices.shape(), x.shape());
      Dims shape = indices.shape(), size = indices.shape();
      for (int a = d + 1; a < x.ndim(); ++a) {
        shape.push_back(1);
        size.push_back(x.shape()[a]);
      }
      c.out.push_back(gather(x, d, expand(reshape(indices, shape), size)));
    });

namespace {

// The columns of indices [..., k], as indices of k axes; in front of them the other operands.
std::vector<Tensor> with_columns(const BodyCall& c, std::vector<Tensor> operands, const Tensor& indices, int axes) {
  if (indices.ndim() == 0 || indices.shape().back() > axes || indices.shape().back() == 0)
    fail_value("{}: the last axis of indices {} names {} axes, and the tensor has {}. It must hold one index per axis.",
               c.op().name(), indices.shape(), indices.ndim() ? indices.shape().back() : 0, axes);
  for (int64_t k = 0; k < indices.shape().back(); ++k) operands.push_back(select(indices, -1, k));
  return operands;
}

}  // namespace

HOLON_OP(gather_nd, "gather_nd(Tensor x, Tensor indices) -> Tensor")
    .doc("The slices of x at indices [..., k], each of which names k leading axes: [..., the other axes]. Errors: an "
         "index out of range (IndexError).",
         "gather_nd(ones(2, 3), tensor([[0, 1]]))")
    .body([](BodyCall& c) {
      c.out.push_back(index_axes(with_columns(c, {c.in(0)}, c.in(1), c.in(0).ndim()), 0, false, "gather_nd"));
    });
HOLON_OP(scatter_nd, "scatter_nd(Tensor indices, Tensor update, int[] shape) -> Tensor")
    .doc("Zeros of the shape with update [..., rest] added at indices [..., k], each of which names k leading axes.",
         "scatter_nd(tensor([[1], [1]]), ones(2), [3])")
    .function_only()
    .body([](BodyCall& c) {
      Dims shape(c.ints("shape"_attr));
      c.out.push_back(
          index_axes_backward(with_columns(c, {c.in(1)}, c.in(0), shape.size()), 0, shape, false, "scatter_nd"));
    });
HOLON_OP(tensor_scatter_nd_update, "tensor_scatter_nd_update(Tensor x, Tensor indices, Tensor updates) -> Tensor")
    .doc("x with updates [..., rest] at indices [..., k], each of which names k leading axes.",
         "tensor_scatter_nd_update(zeros(3), tensor([[1]]), ones(1))")
    .body([](BodyCall& c) {
      c.out.push_back(index_put_axes(with_columns(c, {c.in(0), c.in(2)}, c.in(1), c.in(0).ndim()), 0, false, false,
                                     "tensor_scatter_nd_update"));
    });

HOLON_OP(one_hot, "one_hot(Tensor x, int num_classes=-1) -> Tensor")
    .doc("For each class index in x, a row with a one at that index: [..., num_classes], int64; -1 means the largest "
         "index plus 1. Errors: a number out of range (IndexError).",
         "one_hot(zeros(2, dtype=int64), 3)")
    .body([](BodyCall& c) {
      int64_t classes = c.i("num_classes"_attr);
      if (classes == -1) {
        if (c.in(0).numel() == 0)
          fail_value("one_hot: x {} has no elements to count classes by. Give num_classes.", c.in(0).shape());
        classes = amax(c.in(0)).item().as_int() + 1;
      }
      if (classes <= 0)
        fail_value("one_hot: num_classes is {}; it must be positive, or -1 for the largest number in x plus 1.",
                   classes);
      c.out.push_back(one_hot_rows(c.in(0), classes));
    });
HOLON_OP(one_hot_rows, "one_hot_rows(Tensor x, int num_classes) -> Tensor")
    .doc("one_hot() with a known number of classes.")
    .hidden()
    .infer([](Infer& c) {
      require_index_dtype(c, 0);
      Dims out = c.shape(0);
      out.push_back(c.i("num_classes"_attr));
      c.out(out, int64);
    })
    .rule("... -> ... C")
    .kernel([](KernelCall& c) { kernels::one_hot(c.in(0), c.i("num_classes"_attr), 0, c.out()); });

}  // namespace holon::ops
