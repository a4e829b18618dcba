// Losses. The classes are whole, the rows may be split: a mean over split rows is a partial sum divided by the logical count.
#include "holon/kernels/cpu/loss.h"

#include "holon/kernels/cpu/copy.h"
#include "holon/ops/elementwise.h"

namespace holon::ops {
namespace {

kernels::CrossEntropy options_of(const AttrReader& c) {
  kernels::CrossEntropy o;
  o.ignore_index = c.i("ignore_index");
  o.label_smoothing = c.f("label_smoothing");
  return o;
}

// The leading axes merged into one of rows; a view of what lies in order.
Array as_rows(const Array& a, int n_columns) {
  if (a.ndim() == n_columns + 1) return a;
  Dims shape{1}, strides;
  for (int d = 0; d < a.ndim() - n_columns; ++d) shape[0] *= a.shape[d];
  if (n_columns) shape.push_back(a.shape.back());
  if (view_strides(a.shape, a.strides, shape, &strides)) return a.view(shape, strides);
  return kernels::contiguous(a).view(shape, contiguous_strides(shape));
}

Tensor reduced(const Tensor& loss, std::string_view reduction, const char* op) {
  if (reduction == "none") return loss;
  if (reduction == "sum") return sum(loss);
  if (reduction == "mean") return mean(loss);
  fail_value("{}: reduction is '{}'; it must be 'mean', 'sum' or 'none'.", op, reduction);
}

}  // namespace

HOLON_OP(cross_entropy, "cross_entropy(Tensor logits, Tensor target, *, int ignore_index=-100, str reduction='mean', float label_smoothing=0.0) -> Tensor")
    .doc("-log softmax(logits)[target] for logits [n, c] (or [n, c, d...]) and integer targets [n] (or [n, d...]); rows with target ignore_index count nothing.",
         "cross_entropy(ones(2, 3), zeros(2, dtype=int64))")
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = c.in(0), t = c.in(1);
      if (x.ndim() < 1 || !is_integral(t.dtype()))
        fail_type("cross_entropy: logits are {} {}, target {} {}. The target holds the classes' numbers as integers.", x.shape(), name(x.dtype()), t.shape(), name(t.dtype()));
      if (x.dtype() == float16 || x.dtype() == bfloat16) x = cast(x, float32);
      if (x.ndim() > 2) {  // classes last
        Dims order{0};
        for (int a = 2; a < x.ndim(); ++a) order.push_back(a);
        order.push_back(1);
        x = permute(x, order);
        Dims rows = x.shape();
        rows.resize(rows.size() - 1);
        if (t.shape() != rows) fail_value("cross_entropy: logits {} need a target of shape {}; found {}.", c.in(0).shape(), rows, t.shape());
      }
      Tensor loss = cross_entropy_rows(x, t, c.i("ignore_index"), c.f("label_smoothing"))[0];
      if (c.text("reduction") != "mean") {
        c.out.push_back(reduced(loss, c.text("reduction"), "cross_entropy"));
        return;
      }
      Tensor count = sum(cast(ne_scalar(t, c.i("ignore_index")), loss.dtype()));
      c.out.push_back(div(sum(loss), count));
    });
HOLON_OP(cross_entropy_rows, "cross_entropy_rows(Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> (Tensor, Tensor)")
    .doc("The loss of each row, and the logarithm of its sum of exponentials.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims rows = c.shape(0);
      rows.resize(rows.size() - 1);
      c.require(rows == c.shape(1), "target is not one class per row of logits", "logits are [n, c], target is [n].");
      c.out(rows, c.dtype_of(0));
      c.out(rows, c.dtype_of(0));
    })
    .rule("... C, ... -> ..., ...")
    .kernel([](KernelCall& c) {
      Array loss = as_rows(c.out(0), 0), lse = as_rows(c.out(1), 0);
      kernels::cross_entropy(as_rows(c.in(0), 1), as_rows(kernels::contiguous(c.in(1)), 0), options_of(c), loss, lse);
    })
    .saves({0, 1}, {1})
    .grad([](Grad& g) { g.dx(0, cross_entropy_backward(g.dy(), g.x(0), g.x(1), g.y(1), g.i("ignore_index"), g.f("label_smoothing"))); });
HOLON_OP(cross_entropy_backward, "cross_entropy_backward(Tensor dloss, Tensor logits, Tensor target, Tensor lse, int ignore_index, float label_smoothing) -> Tensor")
    .doc("Gradient of cross_entropy_rows in the logits.").hidden().infer_like(1)
    .rule("..., ... C, ..., ... -> ... C")
    .linear_in({0})
    .kernel([](KernelCall& c) {
      Array dx = as_rows(c.out(), 1);
      kernels::cross_entropy_backward(as_rows(c.in(1), 1), as_rows(kernels::contiguous(c.in(2)), 0), options_of(c), as_rows(kernels::contiguous(c.in(3)), 0),
                                      as_rows(kernels::contiguous(c.in(0)), 0), dx);
    });

HOLON_OP(mse_loss, "mse_loss(Tensor x, Tensor target, *, str reduction='mean') -> Tensor")
    .doc("The squared difference, averaged, summed or for each element.", "mse_loss(ones(2), zeros(2))")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(reduced(square(sub(c.in(0), c.in(1))), c.text("reduction"), "mse_loss")); });

}  // namespace holon::ops
