// Reading and writing by index. A table that is split along its rows (a vocabulary) is read by every rank for the rows that it
// holds, with zeros for the others: a partial sum, without communication in the op.
#include "holon/kernels/cpu/index.h"

#include "holon/kernels/cpu/copy.h"
#include "holon/ops/elementwise.h"

namespace holon::ops {
namespace {

void require_index_dtype(Infer& c, size_t i) {
  c.require_dtype(c.dtype_of(i) == int64 || c.dtype_of(i) == int32, "indices must be int64 or int32", "Convert them by to(int64).");
}

int axis_of(const AttrReader& c, int ndim) { return normalize_axis(c.i("dim"), ndim, c.op().name()); }

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

HOLON_OP(embedding, "embedding(Tensor weight, Tensor indices) -> Tensor")
    .doc("Rows of weight [v, d] by indices of any shape: [..., d]. Errors: an index outside of [0, v) (IndexError).",
         "embedding(ones(4, 3), zeros(2, dtype=int64))")
    .function_only()
    .infer([](Infer& c) {
      c.require(c.ndim(0) == 2, "weight is no table [v, d]", "Give it two axes.");
      require_index_dtype(c, 1);
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
    .kernel([](KernelCall& c) { kernels::embedding(c.in(0), c.in(1), c.offset_in(0)[0], c.logical_in(0)[0], c.out()); })
    .saves({1})
    .grad([](Grad& g) { if (g.needs(0)) g.dx(0, embedding_backward(g.dy(), g.x(1), g.in_shape(0)[0])); });
HOLON_OP(embedding_backward, "embedding_backward(Tensor dy, Tensor indices, int rows) -> Tensor")
    .doc("dy [..., d] added up by row: [rows, d].")
    .hidden()
    .infer([](Infer& c) { c.out({c.i("rows"), c.shape(0).back()}, c.dtype_of(0)); })
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
    .kernel([](KernelCall& c) { kernels::embedding_backward(c.in(0), c.in(1), c.offset_out()[0], c.logical_out()[0], c.out()); })
    .saves({1})
    .grad([](Grad& g) { if (g.needs(0)) g.dx(0, embedding(g.dy(), g.x(1))); });

HOLON_OP(index_select, "index_select(Tensor x, int dim, Tensor index) -> Tensor")
    .doc("The slices of x at the given indices along an axis. Errors: an index out of range (IndexError).", "index_select(ones(3, 2), 0, zeros(2, dtype=int64))")
    .infer([](Infer& c) {
      c.require(c.ndim(1) <= 1 && c.ndim(0) > 0, "index has more than one axis, or x none", "Flatten the index.");
      require_index_dtype(c, 1);
      Dims out = c.shape(0);
      out[c.axis("dim")] = c.shape(1).numel();
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int d = axis_of(r, r.in[0].shape.size());
      for (int a = 0; a < r.out[0].shape.size(); ++a) {
        int f = r.rule.factor();
        r.rule.out(0, a, f);
        if (a != d) r.rule.in(0, a, f);
        else if (r.in[1].shape.size()) r.rule.in(1, 0, f);
      }
    })
    .linear_in({0})
    .kernel([](KernelCall& c) { kernels::index_select(c.in(0), axis_of(c, c.in(0).ndim()), c.in(1), c.out()); })
    .saves({1})
    .grad([](Grad& g) { g.dx(0, index_add_zeros(g.dy(), g.i("dim"), g.x(1), g.in_shape(0)[axis_of(g, g.in_shape(0).size())])); });
HOLON_OP(index_add_zeros, "index_add_zeros(Tensor dy, int dim, Tensor index, int size) -> Tensor")
    .doc("The slices of dy added up at the given indices along an axis of the given size.")
    .hidden()
    .infer([](Infer& c) {
      Dims out = c.shape(0);
      out[c.axis("dim")] = c.i("size");
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      int d = axis_of(r, r.in[0].shape.size());
      for (int a = 0; a < r.out[0].shape.size(); ++a) {
        int f = r.rule.factor(a == d);
        r.rule.in(0, a, f);
        if (a != d) r.rule.out(0, a, f);
        else if (r.in[1].shape.size()) r.rule.in(1, 0, f);
      }
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::fill(c.out(), Scalar(0));
      kernels::index_add(c.out(), axis_of(c, c.out().ndim()), c.in(1), c.in(0));
    })
    .saves({1})
    .grad([](Grad& g) { if (g.needs(0)) g.dx(0, index_select(g.dy(), g.i("dim"), g.x(1))); });

HOLON_OP(gather, "gather(Tensor x, int dim, Tensor index) -> Tensor")
    .doc("out[i][j] = x[index[i][j]][j] for dim 0, and so on for others. Errors: an index out of range (IndexError).",
         "gather(ones(3, 2), 0, zeros(1, 2, dtype=int64))")
    .infer([](Infer& c) {
      require_index_dtype(c, 1);
      c.require(c.ndim(0) == c.ndim(1), "index and x have different numbers of axes", "Unsqueeze one of them.");
      int d = c.axis("dim");
      for (int a = 0; a < c.ndim(0); ++a) c.require(a == d || c.shape(1)[a] <= c.shape(0)[a], "index is larger than x outside of dim", "Slice it.");
      c.out(c.shape(1), c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      along_axis_rule(r);
      // Along dim itself the index may be split: every rank looks up its own entries in the whole x.
      int d = axis_of(r, r.in[0].shape.size());
      if (r.out[0].shape.size() == 0) return;
      int f = r.rule.factor();
      r.rule.in(1, d, f);
      r.rule.out(0, d, f);
    })
    .linear_in({0})
    .kernel([](KernelCall& c) { kernels::gather(c.in(0), axis_of(c, c.in(0).ndim()), c.in(1), c.out()); })
    .saves({1})
    .grad([](Grad& g) { g.dx(0, scatter_add_zeros(g.dy(), g.i("dim"), g.x(1), g.in_shape(0))); });
HOLON_OP(scatter_add_zeros, "scatter_add_zeros(Tensor dy, int dim, Tensor index, int[] shape) -> Tensor")
    .doc("The gradient of gather: dy added up at its indices in zeros of the given shape.")
    .hidden()
    .infer([](Infer& c) { c.out(Dims(c.ints("shape")), c.dtype_of(0)); })
    .rule([](RuleCall& r) {
      along_axis_rule(r);
      int d = axis_of(r, r.in[0].shape.size());
      if (r.out[0].shape.size() == 0) return;
      int f = r.rule.factor(true);
      r.rule.in(0, d, f);
      r.rule.in(1, d, f);
    })
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::fill(c.out(), Scalar(0));
      kernels::scatter(kernels::ScatterOp::kAdd, c.out(), axis_of(c, c.out().ndim()), c.in(1), c.in(0));
    })
    .saves({1})
    .grad([](Grad& g) { if (g.needs(0)) g.dx(0, gather(g.dy(), g.i("dim"), g.x(1))); });

HOLON_OP(one_hot, "one_hot(Tensor x, int num_classes) -> Tensor")
    .doc("For each class number of x a row with a one at it: [..., num_classes], int64. Errors: a number out of range.", "one_hot(zeros(2, dtype=int64), 3)")
    .infer([](Infer& c) {
      require_index_dtype(c, 0);
      c.require(c.i("num_classes") > 0, "num_classes must be positive", "Give the number of classes.");
      Dims out = c.shape(0);
      out.push_back(c.i("num_classes"));
      c.out(out, int64);
    })
    .rule("... -> ... C")
    .kernel([](KernelCall& c) { kernels::one_hot(c.in(0), c.i("num_classes"), 0, c.out()); });

}  // namespace holon::ops
