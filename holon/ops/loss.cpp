// Losses that are made of ops, element by element; those over classes are in class_loss.cpp. A mean over split elements
// is a partial sum divided by the logical count.
#include "holon/ops/loss.h"

#include "holon/internal_ops/activation.h"
#include "holon/internal_ops/loss.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/reduce.h"
#include "holon/ops/reduction.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/special.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

void loss_infer(Infer& c) {
  c.require_floating(0);
  c.out(broadcast_shapes(c.shape(0), c.shape(1), c.op().name()), c.dtype_of(0));
}

Tensor weighted(const BodyCall& c, size_t i, const Tensor& loss) { return c.present(i) ? mul(loss, c.in(i)) : loss; }

void same_shapes(const BodyCall& c) {
  if (c.in(0).shape() != c.in(1).shape())
    fail_value("{}: input has shape {}, target {}. Give them the same shape.", c.op().name(), c.in(0).shape(),
               c.in(1).shape());
}

void check_margin(const BodyCall& c, double margin) {
  Dims shape = c.in(0).shape();
  for (size_t i = 1; i < c.n_in(); ++i)
    if (c.in(i).ndim() == c.in(0).ndim()) shape = broadcast_shapes(shape, c.in(i).shape(), c.op().name());
  if (!(margin == margin)) fail_value("{}: margin is NaN.", c.op().name());
}

}  // namespace

HOLON_OP(mse_loss, "mse_loss(Tensor input, Tensor target, *, str reduction='mean') -> Tensor")
    .doc("The squared difference: averaged, summed or for each element.", "mse_loss(ones(2), zeros(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      same_shapes(c);
      c.out.push_back(reduced(c, squared_difference(c.in(0), c.in(1))));
    });
HOLON_OP(squared_difference, "squared_difference(Tensor x, Tensor target) -> Tensor")
    .doc("(x - target)^2, in one pass over memory, as is its gradient.")
    .hidden()
    .promotes()
    .infer(loss_infer)
    .elementwise()
    .kernel(binary_kernel<BinaryOp::SquaredDifference>)
    .saves({0, 1})
    .grad([](Grad& g) {
      Tensor d = squared_difference_backward(g.dy(), g.x(0), g.x(1));
      if (g.needs(0)) g.dx(0, reduce_to(d, g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(neg(d), g.in_shape(1)));
    });
HOLON_OP(squared_difference_backward, "squared_difference_backward(Tensor dy, Tensor x, Tensor target) -> Tensor")
    .doc("2 dy (x - target).")
    .hidden()
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .rule([](RuleCall& r) {
      elementwise_rule(r.in, r.out, r.rule);
      Signature s;  // linear in x and target together, too
      s.in.push_back(sbp::broadcast());
      s.in.push_back(sbp::partial_sum());
      s.in.push_back(sbp::partial_sum());
      s.out.push_back(sbp::partial_sum());
      r.rule.add(s);
    })
    .kernel([](KernelCall& c) {
      kernels::ternary(kernels::TernaryOp::SquaredDifferenceBackward, c.in(0), c.in(1), c.in(2), c.out());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(squared_difference_backward(g.dy(), g.x(1), g.x(2)), g.in_shape(0)));
      Tensor d = mul(mul(g.dy(), g.x(0)), 2.0);
      if (g.needs(1)) g.dx(1, reduce_to(d, g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(neg(d), g.in_shape(2)));
    });
HOLON_OP(l1_loss, "l1_loss(Tensor input, Tensor target, *, str reduction='mean') -> Tensor")
    .doc("The absolute difference: averaged, summed or for each element.", "l1_loss(ones(2), zeros(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      same_shapes(c);
      c.out.push_back(reduced(c, abs(sub(c.in(0), c.in(1)))));
    });

HOLON_OP(smooth_l1_loss,
         "smooth_l1_loss(Tensor input, Tensor target, *, str reduction='mean', float beta=1.0) -> Tensor")
    .doc("(d^2 / 2) / beta for a difference d [...] with |d| < beta, else |d| - beta / 2.",
         "smooth_l1_loss(ones(2), zeros(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      same_shapes(c);
      double beta = c.f("beta"_attr);
      if (!(beta >= 0)) fail_value("smooth_l1_loss: beta is {}; it must not be negative.", beta);
      c.out.push_back(reduced(c, beta == 0 ? abs(sub(c.in(0), c.in(1))) : smooth_l1(c.in(0), c.in(1), beta)));
    });
HOLON_OP(smooth_l1, "smooth_l1(Tensor x, Tensor target, float beta) -> Tensor")
    .doc("smooth_l1_loss of each element.")
    .hidden()
    .promotes()
    .infer(loss_infer)
    .elementwise()
    .kernel([](KernelCall& c) { kernels::binary(BinaryOp::SmoothL1, c.in(0), c.in(1), c.out(), {c.f("beta"_attr)}); })
    .saves({0, 1})
    .grad([](Grad& g) {
      Tensor d = smooth_l1_backward(g.dy(), g.x(0), g.x(1), g.f("beta"_attr));
      if (g.needs(0)) g.dx(0, reduce_to(d, g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(neg(d), g.in_shape(1)));
    });
HOLON_OP(smooth_l1_backward, "smooth_l1_backward(Tensor dy, Tensor x, Tensor target, float beta) -> Tensor")
    .doc("Gradient of smooth_l1 in x.")
    .hidden()
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::ternary(kernels::TernaryOp::SmoothL1Backward, c.in(0), c.in(1), c.in(2), c.out(), {c.f("beta"_attr)});
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(smooth_l1_backward(g.dy(), g.x(1), g.x(2), g.f("beta"_attr)), g.in_shape(0)));
      if (!g.needs(1) && !g.needs(2)) return;
      Tensor far = ge(abs(sub(g.x(1), g.x(2))), g.f("beta"_attr));
      Tensor d = masked_fill(div(mul(g.dy(), g.x(0)), g.f("beta"_attr)), far, 0.0);
      if (g.needs(1)) g.dx(1, reduce_to(d, g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(neg(d), g.in_shape(2)));
    });

HOLON_OP(huber_loss, "huber_loss(Tensor input, Tensor target, *, str reduction='mean', float delta=1.0) -> Tensor")
    .doc("d^2 / 2 for a difference d [...] with |d| <= delta, else delta (|d| - delta / 2).",
         "huber_loss(ones(2), zeros(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      same_shapes(c);
      if (!(c.f("delta"_attr) > 0)) fail_value("huber_loss: delta is {}; it must be positive.", c.f("delta"_attr));
      c.out.push_back(reduced(c, huber(c.in(0), c.in(1), c.f("delta"_attr))));
    });
HOLON_OP(huber, "huber(Tensor x, Tensor target, float delta) -> Tensor")
    .doc("huber_loss of each element.")
    .hidden()
    .promotes()
    .infer(loss_infer)
    .elementwise()
    .kernel([](KernelCall& c) { kernels::binary(BinaryOp::Huber, c.in(0), c.in(1), c.out(), {c.f("delta"_attr)}); })
    .saves({0, 1})
    .grad([](Grad& g) {
      Tensor d = huber_backward(g.dy(), g.x(0), g.x(1), g.f("delta"_attr));
      if (g.needs(0)) g.dx(0, reduce_to(d, g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(neg(d), g.in_shape(1)));
    });
HOLON_OP(huber_backward, "huber_backward(Tensor dy, Tensor x, Tensor target, float delta) -> Tensor")
    .doc("Gradient of huber in x.")
    .hidden()
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::ternary(kernels::TernaryOp::HuberBackward, c.in(0), c.in(1), c.in(2), c.out(), {c.f("delta"_attr)});
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(huber_backward(g.dy(), g.x(1), g.x(2), g.f("delta"_attr)), g.in_shape(0)));
      if (!g.needs(1) && !g.needs(2)) return;
      Tensor d = masked_fill(mul(g.dy(), g.x(0)), gt(abs(sub(g.x(1), g.x(2))), g.f("delta"_attr)), 0.0);
      if (g.needs(1)) g.dx(1, reduce_to(d, g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(neg(d), g.in_shape(2)));
    });

HOLON_OP(kl_div, "kl_div(Tensor input, Tensor target, *, str reduction='mean', bool log_target=False) -> Tensor")
    .doc("target (log target - input) for log probabilities input [...] and probabilities target [...] (their "
         "logarithms if log_target). reduction may be 'batchmean'.",
         "kl_div(zeros(2), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      const Tensor &x = c.in(0), &t = c.in(1);
      Tensor loss = c.b("log_target"_attr) ? mul(exp(t), sub(t, x)) : sub(xlogy(t, t), mul(t, x));
      if (c.text("reduction"_attr) == "batchmean") {
        if (x.ndim() == 0) fail_value("kl_div: reduction 'batchmean' divides by the first axis, and input has none.");
        c.out.push_back(div(sum(loss), static_cast<double>(x.shape()[0])));
      } else {
        c.out.push_back(reduced(c, loss));
      }
    });

HOLON_OP(binary_cross_entropy,
         "binary_cross_entropy(Tensor input, Tensor target, Tensor? weight=None, *, str reduction='mean') -> Tensor")
    .doc("-(target log input + (1 - target) log(1 - input)) for probabilities input [...] and target [...]; the "
         "logarithms are clamped at -100.",
         "binary_cross_entropy(full([2], 0.5), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      same_shapes(c);
      c.out.push_back(reduced(c, weighted(c, 2, probability_loss(c.in(0), c.in(1)))));
    });
HOLON_OP(probability_loss, "probability_loss(Tensor x, Tensor target) -> Tensor")
    .doc("binary_cross_entropy of each element.")
    .hidden()
    .promotes()
    .infer(loss_infer)
    .elementwise()
    .kernel(binary_kernel<BinaryOp::BinaryCrossEntropy>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(probability_loss_backward(g.dy(), g.x(0), g.x(1)), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(neg(mul(g.dy(), logit(g.x(0)))), g.in_shape(1)));
    });
HOLON_OP(probability_loss_backward, "probability_loss_backward(Tensor dy, Tensor x, Tensor target) -> Tensor")
    .doc("Gradient of probability_loss in x.")
    .hidden()
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::ternary(kernels::TernaryOp::BinaryCrossEntropyBackward, c.in(0), c.in(1), c.in(2), c.out());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      const Tensor &x = g.x(1), &t = g.x(2);
      if (g.needs(0)) g.dx(0, reduce_to(probability_loss_backward(g.dy(), x, t), g.in_shape(0)));
      Tensor spread = mul(x, sub(x, 1.0, {.reverse = true})), d = mul(g.dy(), g.x(0));
      // t / x^2 + (1 - t) / (1 - x)^2
      if (g.needs(1))
        g.dx(1,
             reduce_to(mul(d,
                           add(div(t, square(x)),
                               div(sub(t, 1.0, {.reverse = true}), square(sub(x, 1.0, {.reverse = true}))))),
                       g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(neg(div(d, spread)), g.in_shape(2)));
    });

HOLON_OP(binary_cross_entropy_with_logits,
         "binary_cross_entropy_with_logits(Tensor input, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, "
         "*, str reduction='mean') -> Tensor")
    .doc("binary_cross_entropy of sigmoid(input), in one step and for any input [...]; pos_weight multiplies the part "
         "of positive targets.",
         "binary_cross_entropy_with_logits(zeros(2), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      same_shapes(c);
      const Tensor &x = c.in(0), &t = c.in(1);
      Tensor loss;
      if (c.present(3)) {
        // (1 - t) x + (1 + (p - 1) t) softplus(-x)
        Tensor positive = add(mul(sub(c.in(3), 1.0), t), 1.0);
        loss = sub(mul(sub(t, 1.0, {.reverse = true}), x), mul(positive, logsigmoid(x)));
      } else {
        loss = logit_loss(x, t);
      }
      c.out.push_back(reduced(c, weighted(c, 2, loss)));
    });
HOLON_OP(logit_loss, "logit_loss(Tensor x, Tensor target) -> Tensor")
    .doc("binary_cross_entropy_with_logits of each element.")
    .hidden()
    .promotes()
    .infer(loss_infer)
    .elementwise()
    .kernel(binary_kernel<BinaryOp::BinaryCrossEntropyLogits>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(logit_loss_backward(g.dy(), g.x(0), g.x(1)), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(neg(mul(g.dy(), g.x(0))), g.in_shape(1)));
    });
HOLON_OP(logit_loss_backward, "logit_loss_backward(Tensor dy, Tensor x, Tensor target) -> Tensor")
    .doc("Gradient of logit_loss in x.")
    .hidden()
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .kernel([](KernelCall& c) {
      kernels::ternary(kernels::TernaryOp::BinaryCrossEntropyLogitsBackward, c.in(0), c.in(1), c.in(2), c.out());
    })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(logit_loss_backward(g.dy(), g.x(1), g.x(2)), g.in_shape(0)));
      Tensor d = mul(g.dy(), g.x(0));
      if (g.needs(1)) g.dx(1, reduce_to(sigmoid_backward(d, sigmoid(g.x(1))), g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(neg(d), g.in_shape(2)));
    });

HOLON_OP(cosine_similarity, "cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor")
    .doc("The cosine of the angle between x1 and x2 along dim; each length is at least eps.",
         "cosine_similarity(ones(2, 3), ones(2, 3))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      const Tensor &a = c.in(0), &b = c.in(1);
      if (!is_floating(a.dtype()) || !is_floating(b.dtype()))
        fail_type("cosine_similarity: x1 is {}, x2 {}; both must be floating point.", name(a.dtype()), name(b.dtype()));
      Dims shape = broadcast_shapes(a.shape(), b.shape(), "cosine_similarity"),
           axes{normalize_axis(c.i("dim"_attr), shape.size(), "cosine_similarity")};
      // An axis of only one of them is 1 long: the lengths broadcast like the product.
      Tensor x = a.shape() == shape ? a : expand(a, shape), y = b.shape() == shape ? b : expand(b, shape);
      auto length = [&](const Tensor& t) { return maximum(sqrt(sum(square(t), axes)), c.f("eps"_attr)); };
      c.out.push_back(div(sum(mul(x, y), axes), mul(length(x), length(y))));
    });
HOLON_OP(cosine_embedding_loss,
         "cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, *, float margin=0.0, str "
         "reduction='mean') -> Tensor")
    .doc("1 - cos(input1, input2) where target is 1, max(0, cos - margin) where it is -1; [n, d] or [d].",
         "cosine_embedding_loss(ones(2, 3), ones(2, 3), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      check_margin(c, c.f("margin"_attr));
      int n = c.in(0).ndim();
      if (n < 1 || n > 2 || c.in(1).ndim() != n || c.in(2).ndim() != n - 1)
        fail_value("cosine_embedding_loss: inputs {} and {} and target {} do not fit; [n, d], [n, d] and [n], or [d], "
                   "[d] and [].",
                   c.in(0).shape(), c.in(1).shape(), c.in(2).shape());
      Tensor similar = cosine_similarity(c.in(0), c.in(1), -1, 1e-8);
      Tensor zero = zeros_like(similar);
      Tensor close = where(eq(c.in(2), 1), sub(similar, 1.0, {.reverse = true}), zero);
      Tensor apart = where(eq(c.in(2), -1), relu(sub(similar, c.f("margin"_attr))), zero);
      c.out.push_back(reduced(c, add(close, apart)));
    });
HOLON_OP(triplet_margin_loss,
         "triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, *, float margin=1.0, float p=2.0, float "
         "eps=1e-06, bool swap=False, str reduction='mean') -> Tensor")
    .doc("max(0, |anchor - positive| - |anchor - negative| + margin) with p-norms over the last axis; swap: uses the "
         "distance from the negative to positive if that is smaller.",
         "triplet_margin_loss(ones(2, 3), ones(2, 3), zeros(2, 3))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      check_margin(c, c.f("margin"_attr));
      double p = c.f("p"_attr);
      if (!(p > 0)) fail_value("triplet_margin_loss: p is {}; the order of a norm must be positive.", p);
      if (c.in(0).ndim() == 0) fail_value("triplet_margin_loss: anchor has no axes; it takes [n, d] or [d].");
      auto distance = [&](const Tensor& a, const Tensor& b) {
        Tensor d = abs(add(sub(a, b), c.f("eps"_attr)));
        if (p == 1) return sum(d, Dims{-1});
        if (p == 2) return sqrt(sum(square(d), Dims{-1}));
        return pow(sum(pow(d, p), Dims{-1}), 1 / p);
      };
      Tensor near = distance(c.in(0), c.in(1)), far = distance(c.in(0), c.in(2));
      if (c.b("swap"_attr)) far = minimum(far, distance(c.in(1), c.in(2)));
      c.out.push_back(reduced(c, relu(add(sub(near, far), c.f("margin"_attr)))));
    });
HOLON_OP(margin_ranking_loss,
         "margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, *, float margin=0.0, str reduction='mean') "
         "-> Tensor")
    .doc("max(0, -target (input1 - input2) + margin): all [...]; target 1 means that input1 should be larger, -1 "
         "input2.",
         "margin_ranking_loss(ones(2), zeros(2), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      check_margin(c, c.f("margin"_attr));
      c.out.push_back(
          reduced(c, relu(sub(mul(c.in(2), sub(c.in(0), c.in(1))), c.f("margin"_attr), {.reverse = true}))));
    });
HOLON_OP(hinge_embedding_loss,
         "hinge_embedding_loss(Tensor input, Tensor target, *, float margin=1.0, str reduction='mean') -> Tensor")
    .doc("input [...] where target [...] is 1, max(0, margin - input) where it is -1.",
         "hinge_embedding_loss(ones(2), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      check_margin(c, c.f("margin"_attr));
      Tensor zero = zeros_like(c.in(0));
      Tensor close = where(ne(c.in(1), -1), c.in(0), zero);
      Tensor apart = where(ne(c.in(1), 1), relu(sub(c.in(0), c.f("margin"_attr), {.reverse = true})), zero);
      c.out.push_back(reduced(c, add(close, apart)));
    });
HOLON_OP(soft_margin_loss, "soft_margin_loss(Tensor input, Tensor target, *, str reduction='mean') -> Tensor")
    .doc("log(1 + exp(-target input)) for input [...] and targets [...] of 1 and -1.",
         "soft_margin_loss(ones(2), ones(2))")
    .autocast(Autocast::kFloat32)
    .function_only()
    .body([](BodyCall& c) {
      same_shapes(c);
      c.out.push_back(reduced(c, neg(logsigmoid(mul(c.in(1), c.in(0))))));
    });

}  // namespace holon::ops
