// Functions of one tensor, element by element. Only neg lets a partial sum through: the others are not linear.
#include "holon/ops/elementwise.h"

namespace holon::ops {

HOLON_UNARY(neg, Neg, kSame).doc("-x.", "neg(ones(2))").linear().grad([](Grad& g) { g.dx(0, neg(g.dy())); });
HOLON_UNARY(abs, Abs, kSame).doc("The absolute value.", "abs(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, mul(g.dy(), sign(g.x()))); });
HOLON_UNARY(sign, Sign, kSame).doc("-1, 0 or 1 by the sign of x.", "sign(ones(2))").grad([](Grad& g) { g.dx(0, mul_scalar(g.dy(), 0.0)); });
HOLON_UNARY(square, Square, kSame).doc("x * x.", "square(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, mul(g.dy(), mul_scalar(g.x(), 2.0))); });
HOLON_UNARY(sqrt, Sqrt, kFloat).doc("The square root.", "sqrt(ones(2))").saves({}, {0}).grad([](Grad& g) { g.dx(0, div(g.dy(), mul_scalar(g.y(), 2.0))); });
HOLON_UNARY(rsqrt, Rsqrt, kFloat).doc("1 / sqrt(x).", "rsqrt(ones(2))").saves({}, {0}).grad([](Grad& g) {
  g.dx(0, mul(g.dy(), mul_scalar(mul(g.y(), square(g.y())), -0.5)));
});
HOLON_UNARY(reciprocal, Reciprocal, kFloat).doc("1 / x.", "reciprocal(ones(2))").saves({}, {0}).grad([](Grad& g) { g.dx(0, neg(mul(g.dy(), square(g.y())))); });
HOLON_UNARY(exp, Exp, kFloat).doc("e to the power of x.", "exp(ones(2))").saves({}, {0}).grad([](Grad& g) { g.dx(0, mul(g.dy(), g.y())); });
HOLON_UNARY(expm1, Expm1, kFloat).doc("exp(x) - 1, exact near 0.", "expm1(ones(2))").saves({}, {0}).grad([](Grad& g) { g.dx(0, mul(g.dy(), add_scalar(g.y(), 1.0))); });
HOLON_UNARY(log, Log, kFloat).doc("The natural logarithm.", "log(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, div(g.dy(), g.x())); });
HOLON_UNARY(log2, Log2, kFloat).doc("The logarithm to base 2.", "log2(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, div(g.dy(), mul_scalar(g.x(), 0.6931471805599453))); });
HOLON_UNARY(log1p, Log1p, kFloat).doc("log(1 + x), exact near 0.", "log1p(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, div(g.dy(), add_scalar(g.x(), 1.0))); });
HOLON_UNARY(sin, Sin, kFloat).doc("The sine of x in radians.", "sin(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, mul(g.dy(), cos(g.x()))); });
HOLON_UNARY(cos, Cos, kFloat).doc("The cosine of x in radians.", "cos(ones(2))").saves({0}).grad([](Grad& g) { g.dx(0, neg(mul(g.dy(), sin(g.x())))); });
HOLON_UNARY(erf, Erf, kFloat).doc("The error function.", "erf(ones(2))").saves({0}).grad([](Grad& g) {
  g.dx(0, mul(g.dy(), mul_scalar(exp(neg(square(g.x()))), 1.1283791670955126)));
});
HOLON_UNARY(floor, Floor, kSame).doc("x rounded down.", "floor(ones(2))").grad([](Grad& g) { g.dx(0, mul_scalar(g.dy(), 0.0)); });
HOLON_UNARY(ceil, Ceil, kSame).doc("x rounded up.", "ceil(ones(2))").grad([](Grad& g) { g.dx(0, mul_scalar(g.dy(), 0.0)); });
HOLON_UNARY(round, Round, kSame).doc("x rounded to the nearest, halves to even.", "round(ones(2))").grad([](Grad& g) { g.dx(0, mul_scalar(g.dy(), 0.0)); });
HOLON_UNARY(trunc, Trunc, kSame).doc("x rounded towards zero.", "trunc(ones(2))").grad([](Grad& g) { g.dx(0, mul_scalar(g.dy(), 0.0)); });
HOLON_UNARY(isnan, IsNan, kBool).doc("Whether x is NaN.", "isnan(ones(2))");
HOLON_UNARY(isinf, IsInf, kBool).doc("Whether x is infinite.", "isinf(ones(2))");
HOLON_UNARY(isfinite, IsFinite, kBool).doc("Whether x is neither infinite nor NaN.", "isfinite(ones(2))");
HOLON_UNARY(logical_not, LogicalNot, kBool).doc("Whether x is zero.", "logical_not(ones(2))");

}  // namespace holon::ops
