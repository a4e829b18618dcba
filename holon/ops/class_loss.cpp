// Losses over classes. The rows may be split, and the classes too: then each rank works on the classes that it holds,
// and only rows of numbers travel, never the logits.
#include <algorithm>
#include <limits>
#include <optional>

#include "holon/base/context.h"
#include "holon/boxing/events.h"
#include "holon/dispatch/autocast.h"
#include "holon/internal_ops/class_loss.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/loss.h"
#include "holon/kernels/softmax.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/norm.h"
#include "holon/ops/reduce.h"
#include "holon/ops/reduction.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

// classes: the input with the (part of the) classes as its last axis, or -1 if they are whole.
kernels::CrossEntropy options_of(const KernelCall& c, size_t input) {
  kernels::CrossEntropy o;
  o.ignore_index = c.i("ignore_index"_attr);
  o.label_smoothing = c.f("label_smoothing"_attr);
  o.class_offset = c.offset_in(input).back();
  o.num_classes = c.logical_in(input).back();
  return o;
}

// The leading axes merged into one of rows; a view of what is in order.
Array as_rows(const Array& a, int n_columns) {
  if (a.ndim() == n_columns + 1) return a;
  Dims shape{1}, strides;
  for (int d = 0; d < a.ndim() - n_columns; ++d) shape[0] *= a.shape[d];
  if (n_columns) shape.push_back(a.shape.back());
  if (view_strides(a.shape, a.strides, shape, &strides)) return a.view(shape, strides);
  return kernels::contiguous(a).view(shape, contiguous_strides(shape));
}
Array as_list(const Array& a) { return as_rows(kernels::contiguous(a), 0); }

DType row_dtype(DType t) { return t == float64 ? float64 : float32; }

Dims rows_of(const Dims& shape) {
  Dims rows = shape;
  rows.resize(rows.size() - 1);
  return rows;
}

void rows_infer(Infer& c) {
  c.require_floating(0);
  c.require_dtype(c.dtype_of(1) == int64 || c.dtype_of(1) == int32, "the target must be int64 or int32",
                  "Convert it by to(int64).");
  c.require(rows_of(c.shape(0)) == c.shape(1), "target is not one class per row",
            "Classes are the last axis; target has the other axes.");
}

// [n, c, d...] -> [n, d..., c]
Tensor classes_last(const Tensor& x) {
  if (x.ndim() <= 2) return x;
  Dims order{0};
  for (int a = 2; a < x.ndim(); ++a) order.push_back(a);
  order.push_back(1);
  return permute(x, order);
}

void check_target(const BodyCall& c, const Tensor& x) {
  if (c.in(0).ndim() < 1 || !is_floating(c.in(0).dtype()))
    fail_type("{}: input is {} {}; it must be floating point, [n, c], [c] or [n, c, d...].", c.op().name(),
              c.in(0).shape(), name(c.in(0).dtype()));
  const Tensor& t = c.in(1);
  if (t.dtype() != int64 && t.dtype() != int32)
    fail_type("{}: target is {}; class indices must be int64 or int32.", c.op().name(), name(t.dtype()));
  if (t.shape() != rows_of(x.shape()))
    fail_value("{}: input {} needs a target of shape {}; found {}.", c.op().name(), c.in(0).shape(), rows_of(x.shape()),
               t.shape());
}

void check_weight(const BodyCall& c, int64_t classes) {
  if (c.in(2).ndim() != 1 || c.in(2).numel() != classes)
    fail_value("{}: weight has shape {}; it must hold one number for each of the {} classes.", c.op().name(),
               c.in(2).shape(), classes);
}

// The weight of each row's class; 0 where the row is ignored.
Tensor row_weights(const Tensor& weight, const Tensor& target, int64_t ignore, DType dtype) {
  Tensor w = weight.detach(), skipped = eq(target, ignore);
  if (w.dtype() != dtype) w = cast(w, dtype);
  Tensor picked = embedding(unsqueeze(w, 1), masked_fill(target, skipped, 0));
  return masked_fill(reshape(picked, target.shape()), skipped, 0.0);
}

// Where the classes are split: the sizes of the ranks' axes that split them.
Dims class_parts(const Tensor& x) {
  Dims parts;
  if (!x.is_global()) return parts;
  for (int a = 0; a < x.nd_sbp().size(); ++a)
    if (x.nd_sbp()[a] == sbp::split(x.ndim() - 1)) parts.push_back(x.placement().hierarchy()[a]);
  return parts;
}

// Along the ranks' axes that split the classes each rank has the target of every row.
bool class_ranks_have_all(const Tensor& target, const Tensor& x) {
  bool all = target.nd_sbp().size() == x.nd_sbp().size();
  for (int a = 0; all && a < x.nd_sbp().size(); ++a)
    all = x.nd_sbp()[a] != sbp::split(x.ndim() - 1) || target.nd_sbp()[a].is_broadcast();
  return all;
}

// Both are one number, which ranks may have addends of.
Tensor mean_over(const Tensor& total, const Tensor& count) {
  const boxing::InsideGuard inside;
  return div(total, count);
}

// Rows of -log softmax(x)[target], classes last.
//
// With split classes in three steps: each rank's log-sum-exp over its classes, [rows, ranks], of which every rank takes
// all; the target's logit, 0 on the ranks that do not hold it, as a partial sum; and their difference. A maximum could
// not be joined by partial sums, log-sum-exps of parts can without loss of precision. The last step has the gradient of
// the whole, which needs the joint log-sum-exp and nothing of other ranks' logits.
Tensor row_losses(Tensor x, const Tensor& target, int64_t ignore, double smoothing) {
  Dims parts = class_parts(x);
  // Parts of a row's sum of exponentials would be joined in another order than that of the whole.
  if (parts.empty() || Context::current().layout_free()) return cross_entropy_rows(x, target, ignore, smoothing)[0];
  SmallVec<Sbp, 4> sbps;
  bool partial = false;
  for (int a = 0; a < x.nd_sbp().size(); ++a) {
    partial |= x.nd_sbp()[a].is_partial();
    sbps.push_back(x.nd_sbp()[a].is_partial() ? sbp::broadcast() : x.nd_sbp()[a]);
  }
  // Added up once, not by each step.
  if (partial) x = to_global(x, x.placement(), NdSbp(std::span<const Sbp>(sbps)));
  Tensor lse, picked;
  {
    NoGradGuard no_grad;
    const Tensor of_parts = class_log_sum_exp(x, parts);
    const boxing::InsideGuard inside;
    lse = join_log_sum_exp(of_parts);
    picked = class_picked(x, target, ignore, smoothing);
  }
  // A target that ranks have the wrong rows of is the program's own to move.
  std::optional<boxing::InsideGuard> inside;
  if (!target.is_global() || class_ranks_have_all(target, x)) inside.emplace();
  return cross_entropy_joined(x, target, lse, picked, ignore, smoothing);
}

// The classes [begin, end) of part `part`, by splitting them for each of the ranks' axes in turn.
std::pair<int64_t, int64_t> classes_of_part(int64_t classes, std::span<const int64_t> parts, int64_t part) {
  int64_t begin = 0, size = classes, below = 1;
  for (int64_t p : parts) below *= p;
  for (int64_t p : parts) {
    below /= p;
    Interval i = balanced_split(size, p, part / below % p);
    begin += i.begin;
    size = i.size;
  }
  return {begin, begin + size};
}

// Under autocast it is float32, as of logits that were cast to it; they are not, since the kernels read two-byte logits
// and compute in float32.
Tensor result(const BodyCall& c, const Tensor& loss) {
  if (autocast_mode().enabled) return loss;
  return loss.dtype() == c.in(0).dtype() ? loss : cast(loss, c.in(0).dtype());
}

// Targets that are probabilities of all classes.
Tensor soft_cross_entropy(const BodyCall& c) {
  const Tensor &x = c.in(0), &t = c.in(1);
  if (x.shape() != t.shape())
    fail_value(
        "cross_entropy: target is {}, so it holds probabilities, and has shape {}; it must have input's shape {}.",
        name(t.dtype()), t.shape(), x.shape());
  int axis = x.ndim() == 1 ? 0 : 1;
  int64_t classes = x.shape()[axis];
  double s = c.f("label_smoothing"_attr);
  Tensor wanted = s == 0 ? t : add(mul(t, 1 - s), s / static_cast<double>(classes));
  Tensor terms = mul(wanted, log_softmax(x, axis));
  if (c.present(2)) {
    check_weight(c, classes);
    Dims shape = Dims::filled(x.ndim(), 1);
    shape[axis] = classes;
    terms = mul(terms, reshape(c.in(2).detach(), shape));
  }
  Tensor loss = neg(sum(terms, Dims{axis}));
  if (c.text("reduction"_attr) != "mean") return reduced(c, loss);
  return div(sum(loss), static_cast<double>(x.numel() / std::max<int64_t>(classes, 1)));
}

}  // namespace

HOLON_OP(cross_entropy,
         "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, str "
         "reduction='mean', float label_smoothing=0.0) -> Tensor")
    .doc("-log softmax(input)[target] for input [n, c] (or [c], or [n, c, d...]) and integer targets [n] (or [], or "
         "[n, d...]), times the class's weight; rows with target ignore_index do not count. A floating point target of "
         "input's shape holds probabilities of all classes. Logits that are split by classes are not moved.",
         "cross_entropy(ones(2, 3), zeros(2, dtype=int64))")
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = c.in(0), t = c.in(1);
      double s = c.f("label_smoothing"_attr);
      if (!(s >= 0 && s <= 1)) fail_value("cross_entropy: label_smoothing is {}; it must be from 0 to 1.", s);
      if (x.ndim() >= 1 && is_floating(x.dtype()) && is_floating(t.dtype())) {
        c.out.push_back(result(c, soft_cross_entropy(c)));
        return;
      }
      x = classes_last(x);
      check_target(c, x);
      int64_t ignore = c.i("ignore_index"_attr), classes = x.shape().back();
      bool mean = c.text("reduction"_attr) == "mean";
      if (!c.present(2)) {
        Tensor loss = row_losses(x, t, ignore, s);
        c.out.push_back(
            result(c, mean ? mean_over(sum(loss), sum(cast(ne(t, ignore), loss.dtype()))) : reduced(c, loss)));
        return;
      }
      check_weight(c, classes);
      Tensor w = row_weights(c.in(2), t, ignore, row_dtype(x.dtype()));
      Tensor loss = mul(row_losses(x, t, ignore, 0), w);
      if (s != 0) {
        Tensor each = neg(
            sum(mul(log_softmax(x.dtype() == w.dtype() ? x : cast(x, w.dtype())), cast(c.in(2).detach(), w.dtype())),
                Dims{-1}));
        each = masked_fill(each, eq(t, ignore), 0.0);
        loss = add(mul(loss, 1 - s), mul(each, s / static_cast<double>(classes)));
      }
      c.out.push_back(result(c, mean ? mean_over(sum(loss), sum(w)) : reduced(c, loss)));
    });
HOLON_OP(sparse_softmax_cross_entropy, "sparse_softmax_cross_entropy(Tensor logits, Tensor label) -> Tensor")
    .doc("-log softmax(logits)[label] of each row, for logits [..., c] and labels [...].",
         "sparse_softmax_cross_entropy(ones(2, 3), zeros(2, dtype=int64))")
    .function_only()
    .body([](BodyCall& c) {
      check_target(c, c.in(0));
      c.out.push_back(result(c, row_losses(c.in(0), c.in(1), std::numeric_limits<int64_t>::min(), 0)));
    });

HOLON_OP(
    cross_entropy_rows,
    "cross_entropy_rows(Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> (Tensor, Tensor)")
    .doc("The loss of each row, and the logarithm of its sum of exponentials.")
    .hidden()
    .infer([](Infer& c) {
      rows_infer(c);
      for (int i = 0; i < 2; ++i) c.out(c.shape(1), row_dtype(c.dtype_of(0)));
    })
    .rule("... C, ... -> ..., ...")
    .kernel([](KernelCall& c) {
      Array loss = as_rows(c.out(0), 0), lse = as_rows(c.out(1), 0);
      kernels::cross_entropy(as_rows(c.in(0), 1), as_list(c.in(1)), options_of(c, 0), loss, lse);
    })
    .saves({0, 1}, {1})
    .grad([](Grad& g) {
      g.dx(0,
           cross_entropy_backward(g.dy(), g.x(0), g.x(1), g.y(1), g.i("ignore_index"_attr),
                                  g.f("label_smoothing"_attr)));
    });
HOLON_OP(cross_entropy_backward,
         "cross_entropy_backward(Tensor dloss, Tensor logits, Tensor target, Tensor lse, int ignore_index, float "
         "label_smoothing) -> Tensor")
    .doc("Gradient of the rows' cross-entropy in the logits, which determine lse.")
    .hidden()
    .infer_like(1)
    .rule("..., ... c, ..., ... -> ... c")
    .linear_in({0})
    .kernel([](KernelCall& c) {
      Array dx = as_rows(c.out(), 1);
      kernels::cross_entropy_backward(as_rows(c.in(1), 1), as_list(c.in(2)), options_of(c, 1), as_list(c.in(3)),
                                      as_list(c.in(0)), dx);
    })
    .saves({0, 1, 2, 3})
    .grad([](Grad& g) {
      const Tensor &dloss = g.x(0), &x = g.x(1), &t = g.x(2), &lse = g.x(3);
      int64_t ignore = g.i("ignore_index"_attr);
      if (g.needs(0)) {
        Tensor slope = cross_entropy_backward(ones_like(dloss), x, t, lse, ignore, g.f("label_smoothing"_attr));
        g.dx(0, sum(mul(g.dy(), slope), Dims{-1}));
      }
      if (!g.needs(1)) return;
      // With p = softmax(x): dloss p (dy - sum(dy p)); the gradient through lse is in it.
      Tensor p = exp(sub(x, unsqueeze(lse, -1))), d = unsqueeze(masked_fill(dloss, eq(t, ignore), 0.0), -1);
      g.dx(1, mul(mul(d, p), sub(g.dy(), sum(mul(g.dy(), p), Dims{-1}, true))));
    });

HOLON_OP(class_log_sum_exp, "class_log_sum_exp(Tensor logits, int[] parts) -> Tensor")
    .doc("[..., n]: the logarithm of the sum of exponentials over each of n parts of the classes, split by `parts` in "
         "turn.")
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      Dims out = c.shape(0);
      out.back() = 1;
      for (int64_t p : c.ints("parts"_attr)) out.back() *= p;
      c.out(out, row_dtype(c.dtype_of(0)));
    })
    .rule([](RuleCall& r) {
      int n = r.in[0].shape.size();
      for (int a = 0; a < n; ++a) {
        // As many ranks as parts hold one part each.
        int f = r.rule.factor(false, a + 1 < n ? 0 : r.out[0].shape.back());
        r.rule.in(0, a, f);
        r.rule.out(0, a, f);
      }
    })
    .kernel([](KernelCall& c) {
      const Array& x = c.in(0);
      int last = x.ndim() - 1;
      for (int64_t j = 0; j < c.out().shape.back(); ++j) {
        auto [begin, end] = classes_of_part(c.logical_in(0).back(), c.ints("parts"_attr), c.offset_out()[last] + j);
        begin -= c.offset_in(0)[last];
        end -= c.offset_in(0)[last];
        HOLON_CHECK(begin >= 0 && end <= x.shape[last], "class_log_sum_exp: classes {} to {} of {} here", begin, end,
                    x.shape[last]);
        Dims shape = x.shape, rows = rows_of(x.shape), row_strides = c.out().strides;
        shape[last] = end - begin;
        row_strides.resize(last);
        Array part = Array::empty(rows, c.out().dtype, c.out().device),
              to = c.out().view(rows, row_strides, j * c.out().strides[last]);
        if (begin == end)
          kernels::fill(part, -std::numeric_limits<double>::infinity());
        else
          kernels::log_sum_exp(x.view(shape, x.strides, begin * x.strides[last]), part);
        kernels::copy(part, to);
      }
    });
HOLON_OP(join_log_sum_exp, "join_log_sum_exp(Tensor parts) -> Tensor")
    .doc("log(sum(exp(parts))) over the last axis.")
    .hidden()
    .infer([](Infer& c) { c.out(rows_of(c.shape(0)), c.dtype_of(0)); })
    .rule("... N -> ...")
    .kernel([](KernelCall& c) { kernels::log_sum_exp(c.in(0), c.out()); });
HOLON_OP(class_picked, "class_picked(Tensor logits, Tensor target, int ignore_index, float label_smoothing) -> Tensor")
    .doc("(1 - s) logits[target] + s / classes sum(logits) of each row, 0 where it is ignored: what a part of the "
         "classes adds to it.")
    .hidden()
    .infer([](Infer& c) {
      rows_infer(c);
      c.out(c.shape(1), row_dtype(c.dtype_of(0)));
    })
    .rule("... c, ... -> ...")
    .linear_in({0})
    .kernel([](KernelCall& c) {
      Array picked = as_rows(c.out(), 0);
      kernels::cross_entropy_picked(as_rows(c.in(0), 1), as_list(c.in(1)), options_of(c, 0), picked);
    });
HOLON_OP(cross_entropy_joined,
         "cross_entropy_joined(Tensor logits, Tensor target, Tensor lse, Tensor picked, int ignore_index, float "
         "label_smoothing) -> Tensor")
    .doc("lse - picked, 0 where the row is ignored. The logits are there for the gradient.")
    .hidden()
    .infer([](Infer& c) {
      rows_infer(c);
      c.out(c.shape(1), row_dtype(c.dtype_of(0)));
    })
    .rule([](RuleCall& r) {
      apply_rule_text("... C, ..., ..., ... -> ...", r.in, r.out, r.rule, r.op().name());
      Signature s;
      s.in.push_back(sbp::split(r.in[0].shape.size() - 1));
      for (int i = 0; i < 3; ++i) s.in.push_back(sbp::broadcast());
      s.out.push_back(sbp::broadcast());
      r.rule.add(s);
    })
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::Sub, c.in(2), c.in(3), c.out());
      const int64_t ignore = c.i("ignore_index"_attr);
      if (c.in(1).dtype == int32 && ignore != static_cast<int32_t>(ignore)) return;  // no target can have it
      Array skipped = Array::empty(c.in(1).shape, boolean, c.out().device),
            zero = Array::empty({}, c.out().dtype, c.out().device);
      kernels::binary_scalar(BinaryOp::Eq, c.in(1), ignore, skipped);
      kernels::fill(zero, 0.0);
      kernels::where(skipped, zero, c.out(), c.out());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0))
        g.dx(0,
             cross_entropy_backward(g.dy(), g.x(0), g.x(1), g.x(2), g.i("ignore_index"_attr),
                                    g.f("label_smoothing"_attr)));
    });

HOLON_OP(nll_loss,
         "nll_loss(Tensor input, Tensor target, Tensor? weight=None, *, int ignore_index=-100, str reduction='mean') "
         "-> Tensor")
    .doc("-input[target] for log probabilities input [n, c] (or [c], or [n, c, d...]) and integer targets, times the "
         "class's weight; rows with target ignore_index do not count.",
         "nll_loss(zeros(2, 3), zeros(2, dtype=int64))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = classes_last(c.in(0)), t = c.in(1);
      check_target(c, x);
      int64_t ignore = c.i("ignore_index"_attr);
      Tensor loss = nll_rows(x, t, ignore), w;
      if (c.present(2)) {
        check_weight(c, x.shape().back());
        w = row_weights(c.in(2), t, ignore, loss.dtype());
        loss = mul(loss, w);
      }
      if (c.text("reduction"_attr) != "mean")
        c.out.push_back(result(c, reduced(c, loss)));
      else
        c.out.push_back(result(c, mean_over(sum(loss), sum(w.defined() ? w : cast(ne(t, ignore), loss.dtype())))));
    });
HOLON_OP(nll_rows, "nll_rows(Tensor x, Tensor target, int ignore_index) -> Tensor")
    .doc("-x[target] of each row, 0 where it is ignored; classes last.")
    .hidden()
    .infer([](Infer& c) {
      rows_infer(c);
      c.out(c.shape(1), row_dtype(c.dtype_of(0)));
    })
    .rule("... c, ... -> ...")
    .linear_in({0})
    .kernel([](KernelCall& c) {
      Array loss = as_rows(c.out(), 0);
      kernels::CrossEntropy o{.ignore_index = c.i("ignore_index"_attr),
                              .label_smoothing = 0,
                              .class_offset = c.offset_in(0).back(),
                              .num_classes = c.logical_in(0).back()};
      kernels::nll(as_rows(c.in(0), 1), as_list(c.in(1)), o, loss);
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0))
        g.dx(0, nll_rows_backward(g.dy(), g.x(1), g.in_shape(0).back(), g.in_dtype(0), g.i("ignore_index"_attr)));
    });
HOLON_OP(nll_rows_backward,
         "nll_rows_backward(Tensor dloss, Tensor target, int classes, dtype dtype, int ignore_index) -> Tensor")
    .doc("Gradient of nll_rows.")
    .hidden()
    .infer([](Infer& c) {
      Dims out = c.shape(1);
      out.push_back(c.i("classes"_attr));
      c.out(out, c.dtype("dtype"_attr));
    })
    .rule("..., ... -> ... c")
    .linear_in({0})
    .kernel([](KernelCall& c) {
      Array dx = as_rows(c.out(), 1);
      kernels::CrossEntropy o{.ignore_index = c.i("ignore_index"_attr),
                              .label_smoothing = 0,
                              .class_offset = c.offset_out().back(),
                              .num_classes = c.i("classes"_attr)};
      kernels::nll_backward(as_list(c.in(1)), o, as_list(c.in(0)), dx);
    })
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, nll_rows(g.dy(), g.x(1), g.i("ignore_index"_attr)));
    });

}  // namespace holon::ops
