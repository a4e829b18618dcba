// Functions of two and three tensors beyond arithmetic.
#include <cmath>

#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

void broadcast_infer(Infer& c) {
  Dims s = c.shape(0);
  for (size_t i = 1; i < c.n_in(); ++i) s = broadcast_shapes(s, c.shape(i), c.op().name());
  c.out(s, c.dtype_of(0));
}
void floating_broadcast_infer(Infer& c) {
  c.require_floating(0);
  broadcast_infer(c);
}

// x + f(y, z): partial sums of x pass together with those of y, or of z, for an f that is linear in it.
void three_rule(RuleCall& r, std::initializer_list<size_t> linear_in) {
  elementwise_rule(r.in, r.out, r.rule);
  for (size_t with : linear_in) {
    Signature s;
    for (size_t i = 0; i < 3; ++i) s.in.push_back(i == 0 || i == with ? sbp::partial_sum() : sbp::broadcast());
    s.out.push_back(sbp::partial_sum());
    r.rule.add(s);
  }
}

double value_of(const AttrReader& c) { return c.scalar("value"_attr).as_double(); }

}  // namespace

HOLON_OP(addcmul, "addcmul(Tensor x, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor")
    .doc("x + value * tensor1 * tensor2.", "addcmul(ones(2), ones(2), ones(2))")
    .autocast(Autocast::kPromote)
    .promotes()
    .promotes_with({"value"})
    .infer(broadcast_infer)
    .elementwise()
    .rule([](RuleCall& r) {
      three_rule(r, {1, 2});
    })
    .in_place()
    .kernel([](KernelCall& c) { kernels::addcmul(c.in(0), c.in(1), c.in(2), c.scalar("value"_attr), c.out()); })
    .saves({1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(g.dy(), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(mul(mul(g.dy(), g.x(2)), value_of(g)), g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(mul(mul(g.dy(), g.x(1)), value_of(g)), g.in_shape(2)));
    });
HOLON_OP(addcdiv, "addcdiv(Tensor x, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor")
    .doc("x + value * tensor1 / tensor2. Floating point only.", "addcdiv(ones(2), ones(2), ones(2))")
    .autocast(Autocast::kPromote)
    .promotes()
    .promotes_with({"value"})
    .infer(floating_broadcast_infer)
    .elementwise()
    .rule([](RuleCall& r) { three_rule(r, {1}); })
    .in_place()
    .kernel([](KernelCall& c) { kernels::addcdiv(c.in(0), c.in(1), c.in(2), c.scalar("value"_attr), c.out()); })
    .saves({1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(g.dy(), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(mul(div(g.dy(), g.x(2)), value_of(g)), g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(mul(div(mul(g.dy(), g.x(1)), square(g.x(2))), -value_of(g)), g.in_shape(2)));
    });
HOLON_OP(lerp, "lerp(Tensor x, Tensor end, Scalar weight) -> Tensor")
    .doc("x + weight * (end - x).", "lerp(zeros(2), ones(2), 0.5)")
    .autocast(Autocast::kPromote)
    .promotes()
    .infer(floating_broadcast_infer)
    .elementwise()
    .linear()
    .in_place()
    .kernel([](KernelCall& c) {
      kernels::binary(BinaryOp::Lerp, c.in(0), c.in(1), c.out(), {c.scalar("weight"_attr)});
    })
    .grad([](Grad& g) {
      double w = g.scalar("weight"_attr).as_double();
      if (g.needs(0)) g.dx(0, reduce_to(mul(g.dy(), 1 - w), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(mul(g.dy(), w), g.in_shape(1)));
    });
HOLON_OP(lerp_tensor, "lerp_tensor(Tensor x, Tensor end, Tensor weight) -> Tensor")
    .doc("lerp with a weight for each element.", "lerp(zeros(2), ones(2), full([2], 0.25))")
    .overload_of("lerp")
    .promotes()
    .infer(floating_broadcast_infer)
    .elementwise()
    .in_place()
    .rule([](RuleCall& r) { three_rule(r, {1}); })
    .kernel([](KernelCall& c) { kernels::ternary(kernels::TernaryOp::LerpTensor, c.in(0), c.in(1), c.in(2), c.out()); })
    .saves({0, 1, 2})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(mul(g.dy(), sub(g.x(2), 1.0, {.reverse = true})), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(mul(g.dy(), g.x(2)), g.in_shape(1)));
      if (g.needs(2)) g.dx(2, reduce_to(mul(g.dy(), sub(g.x(1), g.x(0))), g.in_shape(2)));
    });

HOLON_BINARY(atan2, Atan2, kFloat,
             .doc("The angle in radians of the point (other, x), in its own quadrant.", "atan2(ones(2), ones(2))")
                 .autocast(Autocast::kPromote)
                 .saves({0, 1})
                 .grad([](Grad& g) {
                   Tensor d = div(g.dy(), add(square(g.x(0)), square(g.x(1))));
                   if (g.needs(0)) g.dx(0, reduce_to(mul(d, g.x(1)), g.in_shape(0)));
                   if (g.needs(1)) g.dx(1, reduce_to(neg(mul(d, g.x(0))), g.in_shape(1)));
                 }),
             .doc("atan2 of x and value, or of value and x if reverse.").saves({0}).grad([](Grad& g) {
               double v = value_of(g);
               Tensor d = div(g.dy(), add(square(g.x()), v * v));
               g.dx(0, mul(d, g.b("reverse"_attr) ? -v : v));
             }));
HOLON_ALIAS(arctan2, atan2);
HOLON_BINARY(hypot, Hypot, kFloat,
             .doc("sqrt(x^2 + other^2), without intermediate overflow.", "hypot(ones(2), ones(2))")
                 .saves({0, 1}, {0})
                 .grad([](Grad& g) {
                   for (size_t i = 0; i < 2; ++i)
                     if (g.needs(i)) g.dx(i, reduce_to(mul(g.dy(), div(g.x(i), g.y())), g.in_shape(i)));
                 }),
             .doc("hypot of x and value.").saves({0}, {0}).grad([](Grad& g) {
               g.dx(0, mul(g.dy(), div(g.x(), g.y())));
             }));
HOLON_BINARY(logaddexp, LogAddExp, kFloat,
             .doc("log(exp(x) + exp(other)), without intermediate overflow.", "logaddexp(ones(2), ones(2))")
                 .saves({0, 1})
                 .grad([](Grad& g) {
                   if (g.needs(0)) g.dx(0, reduce_to(mul(g.dy(), sigmoid(sub(g.x(0), g.x(1)))), g.in_shape(0)));
                   if (g.needs(1)) g.dx(1, reduce_to(mul(g.dy(), sigmoid(sub(g.x(1), g.x(0)))), g.in_shape(1)));
                 }),
             .doc("logaddexp of x and value.").saves({0}).grad([](Grad& g) {
               g.dx(0, mul(g.dy(), sigmoid(sub(g.x(), value_of(g)))));
             }));
HOLON_BINARY(xlogy, XLogY, kFloat,
             .doc("x * log(other), and 0 where x is 0.", "xlogy(zeros(2), zeros(2))").saves({0, 1}).grad([](Grad& g) {
               if (g.needs(0)) {
                 Tensor slope = log(g.x(1));
                 slope = where(logical_and(eq(g.x(0), 0.0), le(g.x(1), 0.0)), zeros_like(slope), slope);
                 g.dx(0, reduce_to(mul(g.dy(), slope), g.in_shape(0)));
               }
               if (g.needs(1)) g.dx(1, reduce_to(mul(g.dy(), div(g.x(0), g.x(1))), g.in_shape(1)));
             }),
             .doc("x * log(value), or value * log(x) if reverse.").saves({0}).grad([](Grad& g) {
               double v = value_of(g);
               if (g.b("reverse"_attr))
                 g.dx(0, div(mul(g.dy(), v), g.x()));
               else
                 g.dx(0,
                      v > 0 ? mul(g.dy(), std::log(v))
                            : mul(g.dy(), masked_fill(full_like(g.x(), std::log(v)), eq(g.x(), 0.0), 0.0)));
             }));

}  // namespace holon::ops
