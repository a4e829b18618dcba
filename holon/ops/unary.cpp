// Functions of one tensor, element by element. Only neg, and what does nothing, let a partial sum through: the others
// are not linear. The gradients of the usual ones are one pass over memory; those of the others are made of ops.
#include <limits>

#include "holon/internal_ops/unary.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

// Zeros where a slope is 0: a product would make NaN of an infinite gradient.
void zero_grad(Grad& g) { g.dx(0, zeros_like(g.dy())); }
void same_grad(Grad& g) { g.dx(0, g.dy()); }

Tensor one_minus_square(const Tensor& x) { return sub(square(x), 1.0, {.reverse = true}); }

// Of x -> dy f(x): the gradient in dy is the same op, that in x has the slope f'(x) = `slope`.
using Backward = Tensor (*)(const Tensor&, const Tensor&);
void second_grad(Grad& g, Backward again, const Tensor& slope) {
  if (g.needs(0)) g.dx(0, again(g.dy(), g.x(1)));
  if (g.needs(1)) g.dx(1, mul(mul(g.dy(), g.x(0)), slope));
}

constexpr double kLn2 = 0.69314718055994530942, kLn10 = 2.30258509299404568402, kTwoOverRootPi = 1.12837916709551257390;

}  // namespace

HOLON_UNARY(neg, Neg, kSame)
    .doc("-x.", "neg(ones(2))")
    .linear()
    .infer([](Infer& c) {
      c.require_dtype(c.dtype_of(0) != boolean, "bools have no sign", "Use logical_not() or ~.");
      c.out(c.shape(0), c.dtype_of(0));
    })
    .grad([](Grad& g) { g.dx(0, neg(g.dy())); });
HOLON_ALIAS(negative, neg);
HOLON_OP(positive, "positive(Tensor x) -> Tensor").doc("x [...] itself.", "positive(ones(2))").body([](BodyCall& c) {
  c.out.push_back(c.in(0));
});
HOLON_UNARY(abs, Abs, kSame).doc("The absolute value.", "abs(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, abs_backward(g.dy(), g.x()));
});
HOLON_ALIAS(absolute, abs);
HOLON_UNARY(sign, Sign, kSame).doc("-1, 0 or 1 by the sign of x.", "sign(ones(2))").grad(zero_grad);
HOLON_ALIAS(sgn, sign);
HOLON_UNARY(square, Square, kSame).doc("x * x.", "square(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, mul(g.dy(), mul(g.x(), 2.0)));
});
HOLON_UNARY(sqrt, Sqrt, kFloat).doc("The square root.", "sqrt(ones(2))").saves({}, {0}).grad([](Grad& g) {
  g.dx(0, sqrt_backward(g.dy(), g.y()));
});
HOLON_UNARY(rsqrt, Rsqrt, kFloat)
    .doc("1 / sqrt(x).", "rsqrt(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, rsqrt_backward(g.dy(), g.y())); });
HOLON_UNARY(reciprocal, Reciprocal, kFloat)
    .doc("1 / x.", "reciprocal(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, reciprocal_backward(g.dy(), g.y())); });

HOLON_UNARY(exp, Exp, kFloat)
    .doc("e to the power of x.", "exp(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), g.y())); });
HOLON_UNARY(exp2, Exp2, kFloat)
    .doc("2 to the power of x.", "exp2(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), mul(g.y(), kLn2))); });
HOLON_UNARY(expm1, Expm1, kFloat)
    .doc("exp(x) - 1, exact near 0.", "expm1(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), add(g.y(), 1.0))); });
HOLON_UNARY(log, Log, kFloat)
    .doc("The natural logarithm.", "log(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, div(g.dy(), g.x())); });
HOLON_UNARY(log2, Log2, kFloat)
    .doc("The logarithm to base 2.", "log2(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, div(g.dy(), mul(g.x(), kLn2))); });
HOLON_UNARY(log10, Log10, kFloat)
    .doc("The logarithm to base 10.", "log10(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, div(g.dy(), mul(g.x(), kLn10))); });
HOLON_UNARY(log1p, Log1p, kFloat)
    .doc("log(1 + x), exact near 0.", "log1p(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, div(g.dy(), add(g.x(), 1.0))); });

HOLON_UNARY(sin, Sin, kFloat).doc("The sine of x in radians.", "sin(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, sin_backward(g.dy(), g.x()));
});
HOLON_UNARY(cos, Cos, kFloat).doc("The cosine of x in radians.", "cos(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, cos_backward(g.dy(), g.x()));
});
HOLON_UNARY(tan, Tan, kFloat)
    .doc("The tangent of x in radians.", "tan(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), add(square(g.y()), 1.0))); });
HOLON_UNARY(asin, Asin, kFloat)
    .doc("The angle in radians whose sine is x.", "asin(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), rsqrt(one_minus_square(g.x())))); });
HOLON_UNARY(acos, Acos, kFloat)
    .doc("The angle in radians whose cosine is x.", "acos(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, neg(mul(g.dy(), rsqrt(one_minus_square(g.x()))))); });
HOLON_UNARY(atan, Atan, kFloat)
    .doc("The angle in radians whose tangent is x.", "atan(ones(2))")
    .saves({0})
    .grad([](Grad& g) { g.dx(0, div(g.dy(), add(square(g.x()), 1.0))); });
HOLON_UNARY(sinh, Sinh, kFloat)
    .doc("The hyperbolic sine.", "sinh(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), cosh(g.x()))); });
HOLON_UNARY(cosh, Cosh, kFloat)
    .doc("The hyperbolic cosine.", "cosh(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), sinh(g.x()))); });
HOLON_UNARY(asinh, Asinh, kFloat).doc("The inverse hyperbolic sine.", "asinh(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, mul(g.dy(), rsqrt(add(square(g.x()), 1.0))));
});
HOLON_UNARY(acosh, Acosh, kFloat)
    .doc("The inverse hyperbolic cosine.", "acosh(ones(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), rsqrt(sub(square(g.x()), 1.0)))); });
HOLON_UNARY(atanh, Atanh, kFloat)
    .doc("The inverse hyperbolic tangent.", "atanh(zeros(2))")
    .autocast(Autocast::kFloat32)
    .saves({0})
    .grad([](Grad& g) { g.dx(0, div(g.dy(), one_minus_square(g.x()))); });
HOLON_ALIAS(arcsin, asin);
HOLON_ALIAS(arccos, acos);
HOLON_ALIAS(arctan, atan);
HOLON_ALIAS(arcsinh, asinh);
HOLON_ALIAS(arccosh, acosh);
HOLON_ALIAS(arctanh, atanh);

HOLON_UNARY(erf, Erf, kFloat).doc("The error function.", "erf(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, erf_backward(g.dy(), g.x()));
});
HOLON_UNARY(erfc, Erfc, kFloat)
    .doc("1 - erf(x), exact where that is small.", "erfc(ones(2))")
    .saves({0})
    .grad([](Grad& g) { g.dx(0, neg(erf_backward(g.dy(), g.x()))); });
HOLON_UNARY(erfinv, Erfinv, kFloat)
    .doc("The inverse error function, for x from -1 to 1.", "erfinv(zeros(2))")
    .autocast(Autocast::kFloat32)
    .saves({}, {0})
    .grad([](Grad& g) { g.dx(0, mul(g.dy(), mul(exp(square(g.y())), 1 / kTwoOverRootPi))); });

HOLON_UNARY(floor, Floor, kSame).doc("x rounded down.", "floor(ones(2))").grad(zero_grad);
HOLON_UNARY(ceil, Ceil, kSame).doc("x rounded up.", "ceil(ones(2))").grad(zero_grad);
HOLON_UNARY(round, Round, kSame).doc("x rounded to the nearest, halves to even.", "round(ones(2))").grad(zero_grad);
HOLON_UNARY(trunc, Trunc, kSame).doc("x rounded towards zero.", "trunc(ones(2))").grad(zero_grad);
HOLON_ALIAS(fix, trunc);
HOLON_UNARY(frac, Frac, kSame).doc("x - trunc(x).", "frac(ones(2))").grad(same_grad);
HOLON_UNARY(isnan, IsNan, kBool).doc("Whether x is NaN.", "isnan(ones(2))");
HOLON_UNARY(isinf, IsInf, kBool).doc("Whether x is infinite.", "isinf(ones(2))");
HOLON_UNARY(isfinite, IsFinite, kBool).doc("Whether x is neither infinite nor NaN.", "isfinite(ones(2))");
HOLON_UNARY(logical_not, LogicalNot, kBool).doc("Whether x is zero.", "logical_not(ones(2))");
HOLON_UNARY(bitwise_not, BitNot, kSame)
    .doc("Each bit of x inverted; logical_not for bools.", "bitwise_not(zeros(2, dtype=int64))")
    .infer([](Infer& c) {
      c.require_dtype(!is_floating(c.dtype_of(0)), "takes integers and bools only",
                      "Convert it first, e.g. x.to(int64).");
      c.out(c.shape(0), c.dtype_of(0));
    });

HOLON_OP(logit, "logit(Tensor x, float? eps=None) -> Tensor")
    .doc("log(x / (1 - x)), of x [...] clamped to [eps, 1 - eps] if eps is given.", "logit(full([2], 0.5))")
    .in_place()
    .body([](BodyCall& c) {
      Tensor x = c.in(0);
      if (!is_floating(x.dtype())) x = cast(x, float32);
      if (c.has("eps"_attr)) x = clamp(x, c.f("eps"_attr), 1 - c.f("eps"_attr));
      c.out.push_back(log(div(x, sub(x, 1.0, {.reverse = true}))));
    });
HOLON_OP(sinc, "sinc(Tensor x) -> Tensor")
    .doc("sin(pi x) / (pi x), and 1 at 0, for x [...].", "sinc(zeros(2))")
    .in_place()
    .body([](BodyCall& c) {
      Tensor x = mul(c.in(0), 3.14159265358979323846), zero = eq(x, 0.0);
      // The place of 0 is taken by 1 before the division, so that no NaN gets into the gradient.
      Tensor safe = masked_fill(x, zero, 1.0);
      c.out.push_back(masked_fill(div(sin(safe), safe), zero, 1.0));
    });
HOLON_OP(nan_to_num, "nan_to_num(Tensor x, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor")
    .doc("x [...] with NaN, infinity and minus infinity replaced, by default by 0 and the largest and smallest numbers "
         "of the dtype.",
         "nan_to_num(ones(2))")
    .in_place()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      if (!is_floating(x.dtype())) {  // every number is finite
        c.out.push_back(clone(x));
        return;
      }
      double largest = x.dtype() == float64 ? std::numeric_limits<double>::max()
          : x.dtype() == float16            ? 65504.0
          : x.dtype() == bfloat16           ? 3.38953138925153547590e38
                                            : static_cast<double>(std::numeric_limits<float>::max());
      c.out.push_back(replace_nonfinite(x, c.has("nan"_attr) ? c.f("nan"_attr) : 0.0,
                                        c.has("posinf"_attr) ? c.f("posinf"_attr) : largest,
                                        c.has("neginf"_attr) ? c.f("neginf"_attr) : -largest));
    });
HOLON_OP(replace_nonfinite, "replace_nonfinite(Tensor x, float nan, float posinf, float neginf) -> Tensor")
    .doc("nan_to_num with all numbers given.")
    .hidden()
    .infer_like()
    .elementwise()
    .kernel([](KernelCall& c) {
      kernels::unary(UnaryOp::NanToNum, c.in(0), c.out(), {c.f("nan"_attr), c.f("posinf"_attr), c.f("neginf"_attr)});
    })
    .saves({0})
    .grad([](Grad& g) { g.dx(0, masked_fill(g.dy(), logical_not(isfinite(g.x())), 0.0)); });

// Gradients that read the result y.
HOLON_OP(sqrt_backward, "sqrt_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("dy / (2 y).")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::SqrtBackward>)
    .saves({0, 1})
    .grad([](Grad& g) { second_grad(g, sqrt_backward, mul(pow(g.x(1), -2.0), -0.5)); });
HOLON_OP(rsqrt_backward, "rsqrt_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("-dy y^3 / 2.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::RsqrtBackward>)
    .saves({0, 1})
    .grad([](Grad& g) { second_grad(g, rsqrt_backward, mul(square(g.x(1)), -1.5)); });
HOLON_OP(reciprocal_backward, "reciprocal_backward(Tensor dy, Tensor y) -> Tensor")
    .doc("-dy y^2.")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::ReciprocalBackward>)
    .saves({0, 1})
    .grad([](Grad& g) { second_grad(g, reciprocal_backward, mul(g.x(1), -2.0)); });
// Gradients that read the input x.
HOLON_OP(abs_backward, "abs_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("dy sign(x).")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::AbsBackward>)
    .saves({1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, abs_backward(g.dy(), g.x(1)));
    });
HOLON_OP(sin_backward, "sin_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("dy cos(x).")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::SinBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, sin_backward(g.dy(), g.x(1)));
      if (g.needs(1)) g.dx(1, cos_backward(mul(g.dy(), g.x(0)), g.x(1)));
    });
HOLON_OP(cos_backward, "cos_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("-dy sin(x).")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::CosBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, cos_backward(g.dy(), g.x(1)));
      if (g.needs(1)) g.dx(1, neg(sin_backward(mul(g.dy(), g.x(0)), g.x(1))));
    });
HOLON_OP(erf_backward, "erf_backward(Tensor dy, Tensor x) -> Tensor")
    .doc("dy 2 / sqrt(pi) exp(-x^2).")
    .infer_broadcast()
    .elementwise()
    .linear_in({0})
    .hidden()
    .kernel(binary_kernel<BinaryOp::ErfBackward>)
    .saves({0, 1})
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, erf_backward(g.dy(), g.x(1)));
      if (g.needs(1)) g.dx(1, mul(mul(erf_backward(mul(g.dy(), g.x(0)), g.x(1)), g.x(1)), -2.0));
    });

}  // namespace holon::ops
