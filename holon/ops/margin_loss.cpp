// Losses that want the scores of a sample's own classes to exceed those of the others. They are made of other ops: the
// samples split.
#include "holon/ops/margin_loss.h"

#include "holon/base/error.h"
#include "holon/internal_ops/index.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/index.h"
#include "holon/ops/reduce.h"
#include "holon/ops/reduction.h"
#include "holon/ops/scan.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

// input as [n, classes]. Errors: other axes, or not floating point.
Tensor rows_of_scores(const BodyCall& c) {
  const Tensor& x = c.in(0);
  if (!is_floating(x.dtype()))
    fail_type("{}: input is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).",
              c.op().name(), name(x.dtype()));
  if (x.ndim() < 1 || x.ndim() > 2 || x.shape().back() == 0)
    fail_value("{}: input is {}; it takes [n, classes] or [classes].", c.op().name(), x.shape());
  return x.ndim() == 1 ? unsqueeze(x, 0) : x;
}

void require_classes(const BodyCall& c, const Dims& shape) {
  const Tensor& t = c.in(1);
  if (t.dtype() != int64 && t.dtype() != int32)
    fail_type("{}: target is {}; class indices must be int64 or int32. Convert it by to(int64).", c.op().name(),
              name(t.dtype()));
  if (t.shape() != shape)
    fail_value("{}: input {} needs a target of shape {}; found {}.", c.op().name(), c.in(0).shape(), shape, t.shape());
}

// What reads by class. Errors: a class out of range, in the loss's name (IndexError).
template <class F>
Tensor by_class(const BodyCall& c, F read) {
  try {
    return read();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kIndex) throw;
    fail(ErrorKind::kIndex, "{}: a target is not one of the {} classes of input {}: {}", c.op().name(),
         c.in(0).shape().back(), c.in(0).shape(), e.what());
  }
}

// Without the axis of samples, if input had none; reduced.
Tensor finished(const BodyCall& c, const Tensor& loss) {
  return reduced(c, c.in(0).ndim() == 1 ? squeeze(loss, Dims{0}) : loss);
}

}  // namespace

HOLON_OP(multi_margin_loss,
         "multi_margin_loss(Tensor input, Tensor target, int p=1, float margin=1.0, Tensor? weight=None, str "
         "reduction='mean') -> Tensor")
    .doc("The mean over all classes of max(0, margin - input[target] + input[j])^p, j not being the target, for input "
         "[n, "
         "classes] and target [n]. p is 1 or 2. weight: one number for each class, by which the loss of its targets is "
         "multiplied.",
         "multi_margin_loss(ones(2, 3), zeros(2, dtype=int64))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = rows_of_scores(c);
      require_classes(c, c.in(0).ndim() == 1 ? Dims{} : Dims{x.shape()[0]});
      const int64_t p = c.i("p"_attr), classes = x.shape()[1];
      if (p != 1 && p != 2) fail_value("multi_margin_loss: p is {}; it must be 1 or 2.", p);
      if (!(c.f("margin"_attr) == c.f("margin"_attr))) fail_value("multi_margin_loss: margin is NaN.");
      Tensor target = reshape(c.in(1), {x.shape()[0], 1});
      Tensor picked = by_class(c, [&] { return gather(x, 1, target); });
      Tensor over = relu(add(sub(x, picked), c.f("margin"_attr)));
      if (p == 2) over = square(over);
      Tensor own = ne(reshape(one_hot_rows(target, classes), x.shape()), 0);
      over = masked_fill(over, own, 0.0);
      if (c.present(2)) {
        const Tensor& w = c.in(2);
        if (w.shape() != Dims{classes})
          fail_value("multi_margin_loss: weight has shape {}; it must hold one number for each of the {} classes.",
                     w.shape(), classes);
        Tensor weights = w.dtype() == x.dtype() ? w : cast(w, x.dtype());
        over = mul(over, reshape(index_select(weights, 0, reshape(target, {x.shape()[0]})), {x.shape()[0], 1}));
      }
      c.out.push_back(finished(c, mean(over, Dims{1})));
    });

HOLON_OP(multilabel_margin_loss,
         "multilabel_margin_loss(Tensor input, Tensor target, *, str reduction='mean') -> Tensor")
    .doc(
        "The sum of max(0, 1 - input[k] + input[j]) over a sample's targets k and all other classes j, over the number "
        "of classes, for input [n, classes] and target [n, classes]: classes up to the first negative number.",
        "multilabel_margin_loss(ones(1, 3), tensor([[1, -1, 0]]))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      Tensor x = rows_of_scores(c);
      require_classes(c, c.in(0).shape());
      const int64_t n = x.shape()[0], classes = x.shape()[1];
      Tensor given = reshape(c.in(1), x.shape());
      Tensor counts = cumprod(cast(ge(given, 0), int64), 1);  // 0 from the first negative number on
      Tensor target = mul(cast(given, int64), counts), valid = cast(counts, x.dtype());
      // Of each class how often it is a target.
      Tensor classes_of = by_class(c, [&] { return one_hot_rows(target, classes); });
      Tensor own = sum(mul(classes_of, unsqueeze(counts, 2)), Dims{1});
      Tensor other = cast(eq(own, 0), x.dtype());
      Tensor over = relu(add(sub(unsqueeze(x, 1), unsqueeze(gather(x, 1, target), 2)), 1.0));  // [n, targets, classes]
      Tensor loss = mul(mul(over, unsqueeze(valid, 2)), unsqueeze(other, 1));
      c.out.push_back(
          finished(c, div(sum(reshape(loss, {n, classes * classes}), Dims{1}), static_cast<double>(classes))));
    });

HOLON_OP(multilabel_soft_margin_loss,
         "multilabel_soft_margin_loss(Tensor input, Tensor target, Tensor? weight=None, *, str reduction='mean') -> "
         "Tensor")
    .doc("The mean over the last axis of the binary cross-entropy of sigmoid(input) with target, both [n, classes], of "
         "0 "
         "and 1. weight: one number for each class.",
         "multilabel_soft_margin_loss(ones(2, 3), ones(2, 3))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (!is_floating(x.dtype()))
        fail_type("multilabel_soft_margin_loss: input is {}; it takes floating point tensors only. Convert it first, "
                  "e.g. x.to(float32).",
                  name(x.dtype()));
      if (x.ndim() < 1 || c.in(1).shape() != x.shape())
        fail_value(
            "multilabel_soft_margin_loss: input has shape {}, target {}. Give them the same shape, [n, classes].",
            x.shape(), c.in(1).shape());
      Tensor t = c.in(1).dtype() == x.dtype() ? c.in(1) : cast(c.in(1), x.dtype());
      // -(t log s(x) + (1 - t) log s(-x)), as log s(-x) = log s(x) - x
      Tensor loss = sub(mul(sub(t, 1.0, {.reverse = true}), x), logsigmoid(x));
      if (c.present(2)) loss = mul(loss, c.in(2));
      c.out.push_back(reduced(c, mean(loss, Dims{-1})));
    });

}  // namespace holon::ops
