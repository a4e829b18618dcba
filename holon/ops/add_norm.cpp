// A residual and the norm behind it, and their gradients. The graph's passes put them in place of pairs of ops, after
// backward has been recorded, so that they have no gradients. What is added, normalised and given may be of several
// floating dtypes: conversions around a norm, as autocast makes them, are done on the way.
#include "holon/kernels/norm.h"
#include "holon/ops/norm_rules.h"
#include "holon/ops/rules.h"

namespace holon::ops {
namespace {

bool wide(DType dtype) { return dtype == float64; }

// The shape of a row. like: the input that is normalised, or what its gradient is of.
Dims checked_columns(const Infer& c, size_t like, size_t first_weight, size_t n_weights) {
  const int64_t axes = c.i("axes"_attr);
  c.require(axes >= 1 && axes <= c.ndim(like), "axes is not a number of x's last axes", "It is 1 or more.");
  const Dims columns = columns_of(c, c.shape(like));
  for (size_t i = first_weight; i < first_weight + n_weights; ++i) {
    if (!c.present(i)) continue;
    c.require_floating(i);
    c.require(c.shape(i) == columns, "a weight does not have the shape of a row",
              "Give one value for each element of it.");
  }
  return columns;
}

// The shape of x without the rows' axes.
Dims rows_of(const Dims& x, const Dims& columns) {
  Dims rows = x;
  rows.resize(x.size() - columns.size());
  return rows;
}

// Inputs 0 and 1 are added; what comes of it is given as `dtype`.
void infer_forward(Infer& c, size_t n_weights, size_t n_statistics) {
  for (size_t i : {0, 1}) c.require_floating(i);
  c.require(c.shape(0) == c.shape(1), "the shapes of the addends differ", "Broadcast one of them first.");
  const Dims rows = rows_of(c.shape(0), checked_columns(c, 0, 2, n_weights));
  const DType sum = promote(c.dtype_of(0), c.dtype_of(1)), y = c.dtype("dtype"_attr);
  c.require_dtype(is_floating(y) && (wide(sum) || !wide(y)), "the sum cannot be returned in this dtype",
                  "It must be a floating point dtype, and float64 only if the sum is.");
  c.out(c.shape(0), sum);
  c.out(c.shape(0), y);
  for (size_t i = 0; i < n_statistics; ++i) c.out(rows, statistics_dtype(sum));
}

// dy, x, the statistics, weight and what is added.
void infer_backward(Infer& c, size_t n_statistics, size_t n_gradients) {
  const size_t weight = 2 + n_statistics, other = weight + 1;
  const Dims columns = checked_columns(c, 1, weight, 1), rows = rows_of(c.shape(1), columns);
  for (size_t i : {size_t{0}, size_t{1}, other}) {
    c.require_floating(i);
    c.require(c.shape(i) == c.shape(1), "dy, x and other have different shapes", "They must be the same.");
    c.require_dtype(wide(c.dtype_of(1)) || !wide(c.dtype_of(i)), "one is float64, x is not", "Convert it by to().");
  }
  for (size_t i = 2; i < weight; ++i) {
    c.require(c.shape(i) == rows, "a statistic does not have one value for each row", "Pass what forward returned.");
    c.require_dtype(c.dtype_of(i) == statistics_dtype(c.dtype_of(1)), "a statistic has another dtype",
                    "Pass what forward returned.");
  }
  c.out(c.shape(1), c.dtype_of(1));
  for (size_t i = 0; i < n_gradients; ++i) c.out(columns, c.dtype_of(1));
}

int axes_of(const AttrReader& c) { return static_cast<int>(c.i("axes"_attr)); }

}  // namespace

HOLON_OP(add_layer_norm,
         "add_layer_norm(Tensor x, Tensor other, Tensor? weight, Tensor? bias, int axes, float eps, dtype dtype) -> "
         "(Tensor, Tensor, Tensor, Tensor)")
    .doc("x + other, its layer_norm as dtype, and the mean and reciprocal deviation of each row.")
    .hidden()
    .writes_over({0, 1})
    .infer([](Infer& c) { infer_forward(c, 2, 2); })
    .rule([](RuleCall& r) {
      row_rule(r, axes_of(r), 2);
      if (given(r, 2) && given(r, 3))
        pass_partial(r, {2, 3}, {1});
      else if (given(r, 2))
        pass_partial(r, {2}, {1});
    })
    .kernel([](KernelCall& c) {
      kernels::add_layer_norm(c.in(0), c.in(1), axes_of(c), c.in(2), c.in(3), c.f("eps"_attr), c.out(0), c.out(1),
                              c.out(2), c.out(3));
    });

HOLON_OP(layer_norm_backward_add,
         "layer_norm_backward_add(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, Tensor other, int "
         "axes) -> (Tensor, Tensor, Tensor)")
    .doc("Gradients of layer_norm in x, to which other is added, weight and bias.")
    .hidden()
    .writes_over({0, 5})
    .infer([](Infer& c) { infer_backward(c, 2, 2); })
    .rule([](RuleCall& r) {
      row_backward_rule(r, {0, 1, 2, 3, 5});
      pass_partial(r, {0, 5}, {0, 1, 2});
      if (given(r, 4)) pass_partial(r, {4, 5}, {0});
    })
    .kernel([](KernelCall& c) {
      kernels::layer_norm_backward_add(c.in(0), c.in(1), axes_of(c), c.in(4), c.in(2), c.in(3), c.in(5), c.out(0),
                                       &c.out(1), &c.out(2));
    });

HOLON_OP(add_rms_norm,
         "add_rms_norm(Tensor x, Tensor other, Tensor? weight, int axes, float eps, dtype dtype) -> (Tensor, Tensor, "
         "Tensor)")
    .doc("x + other, its rms_norm as dtype, and the reciprocal root of each row.")
    .hidden()
    .writes_over({0, 1})
    .infer([](Infer& c) { infer_forward(c, 1, 1); })
    .rule([](RuleCall& r) {
      row_rule(r, axes_of(r), 2);
      if (given(r, 2)) pass_partial(r, {2}, {1});
    })
    .kernel([](KernelCall& c) {
      kernels::add_rms_norm(c.in(0), c.in(1), axes_of(c), c.in(2), c.f("eps"_attr), c.out(0), c.out(1), c.out(2));
    });

HOLON_OP(rms_norm_backward_add,
         "rms_norm_backward_add(Tensor dy, Tensor x, Tensor rstd, Tensor? weight, Tensor other, int axes) -> (Tensor, "
         "Tensor)")
    .doc("Gradients of rms_norm in x, to which other is added, and weight.")
    .hidden()
    .writes_over({0, 4})
    .infer([](Infer& c) { infer_backward(c, 1, 1); })
    .rule([](RuleCall& r) {
      row_backward_rule(r, {0, 1, 2, 4});
      pass_partial(r, {0, 4}, {0, 1});
      if (given(r, 3)) pass_partial(r, {3, 4}, {0});
    })
    .kernel([](KernelCall& c) {
      kernels::rms_norm_backward_add(c.in(0), c.in(1), axes_of(c), c.in(3), c.in(2), c.in(4), c.out(0), &c.out(1));
    });

}  // namespace holon::ops
