// Arithmetic between two tensors, or a tensor and a number, with broadcasting.
// Sums and differences let partial sums of all operands through together; a product those of one operand. A number that
// is added does not: it would be added once per rank.
#include "holon/ops/arithmetic.h"

#include <cmath>

#include "holon/internal_ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

void add_grad(Grad& g) {
  for (size_t i = 0; i < 2; ++i)
    if (g.needs(i)) g.dx(i, reduce_to(g.dy(), g.in_shape(i)));
}
void sub_grad(Grad& g) {
  if (g.needs(0)) g.dx(0, reduce_to(g.dy(), g.in_shape(0)));
  if (g.needs(1)) g.dx(1, reduce_to(neg(g.dy()), g.in_shape(1)));
}
void mul_grad(Grad& g) {
  if (g.needs(0)) g.dx(0, reduce_to(mul(g.dy(), g.x(1)), g.in_shape(0)));
  if (g.needs(1)) g.dx(1, reduce_to(mul(g.dy(), g.x(0)), g.in_shape(1)));
}
void div_grad(Grad& g) {
  if (g.needs(0)) g.dx(0, reduce_to(div(g.dy(), g.x(1)), g.in_shape(0)));
  if (g.needs(1)) g.dx(1, reduce_to(neg(div(mul(g.dy(), g.x(0)), square(g.x(1)))), g.in_shape(1)));
}
void pow_grad(Grad& g) {
  if (g.needs(0)) {
    // x ** 0 has slope 0, where 0 * 0 ** -1 would make NaN.
    Tensor slope = mul(g.x(1), pow(g.x(0), sub(g.x(1), 1)));
    g.dx(0, reduce_to(mul(g.dy(), where(eq(g.x(1), 0), zeros_like(slope), slope)), g.in_shape(0)));
  }
  if (g.needs(1)) {
    // 0 ** y has slope 0 in y, where log(0) would make NaN.
    Tensor safe = where(eq(g.x(0), 0), ones_like(g.x(0)), g.x(0));
    g.dx(1, reduce_to(mul(g.dy(), mul(g.y(), log(safe))), g.in_shape(1)));
  }
}
// The gradient of a maximum goes to the larger operand, and half to each where they are equal.
void extremum_grad(Grad& g, bool maximum) {
  Tensor half = mul(cast(eq(g.x(0), g.x(1)), g.dy().dtype()), 0.5);
  for (size_t i = 0; i < 2; ++i) {
    if (!g.needs(i)) continue;
    Tensor wins = cast(maximum == (i == 0) ? gt(g.x(0), g.x(1)) : lt(g.x(0), g.x(1)), g.dy().dtype());
    g.dx(i, reduce_to(mul(g.dy(), add(wins, half)), g.in_shape(i)));
  }
}

void same_grad(Grad& g) { g.dx(0, g.dy()); }
void sub_scalar_grad(Grad& g) { g.dx(0, g.b("reverse"_attr) ? neg(g.dy()) : g.dy()); }
void mul_scalar_grad(Grad& g) { g.dx(0, mul(g.dy(), g.scalar("value"_attr))); }
void div_scalar_grad(Grad& g) {
  if (g.b("reverse"_attr))
    g.dx(0, mul(g.dy(), div(square(g.x()), -g.scalar("value"_attr).as_double(), {.reverse = true})));
  else
    g.dx(0, div(g.dy(), g.scalar("value"_attr)));
}
// x / value is linear, value / x is not.
void div_scalar_rule(RuleCall& r) {
  elementwise_rule(r.in, r.out, r.rule);
  if (r.b("reverse"_attr)) return;
  Signature s;
  s.in.push_back(sbp::partial_sum());
  s.out.push_back(sbp::partial_sum());
  r.rule.add(s);
}
void pow_scalar_grad(Grad& g) {
  double v = g.scalar("value"_attr).as_double();
  if (g.b("reverse"_attr))
    g.dx(0, v == 0 ? zeros_like(g.dy()) : mul(g.dy(), mul(g.y(), std::log(v))));
  else if (v == 0)
    g.dx(0, zeros_like(g.dy()));
  else if (v == 2)
    g.dx(0, mul(g.dy(), mul(g.x(), 2.0)));
  else
    g.dx(0, mul(g.dy(), mul(pow(g.x(), v - 1), v)));
}
// An integer to a negative power is a fraction, which integers cannot hold.
void pow_scalar_infer(Infer& c) {
  Scalar v = c.scalar("value"_attr);
  if (!is_floating(c.dtype_of(0)) && !c.b("reverse"_attr) && !v.is_float() && v.as_int() < 0)
    fail_value(
        "pow: integers cannot be raised to the negative power {}; x is {} {}. Convert it first, e.g. x.to(float32).",
        v.as_int(), c.shape(0), name(c.dtype_of(0)));
  c.out(c.shape(0), c.dtype_of(0));
}
void sub_infer(Infer& c) {
  c.require_dtype(c.dtype_of(0) != boolean, "bools cannot be subtracted", "Use logical_xor() or ^.");
  c.out(c.n_in() == 2 ? broadcast_shapes(c.shape(0), c.shape(1), c.op().name()) : c.shape(0), c.dtype_of(0));
}
// value % x = value - x floor(value / x)
void remainder_scalar_grad(Grad& g) {
  if (g.b("reverse"_attr))
    g.dx(0, neg(mul(g.dy(), floor(div(g.x(), g.scalar("value"_attr), {.reverse = true})))));
  else
    g.dx(0, g.dy());
}
void fmod_scalar_grad(Grad& g) {
  if (g.b("reverse"_attr))
    g.dx(0, neg(mul(g.dy(), trunc(div(g.x(), g.scalar("value"_attr), {.reverse = true})))));
  else
    g.dx(0, g.dy());
}
void truncated_kernel(KernelCall& c) {
  kernels::binary(BinaryOp::Div, c.in(0), c.in(1), c.out());
  if (is_floating(c.out().dtype)) kernels::unary(UnaryOp::Trunc, c.out(), c.out());
}
// With the op's name in the error of an integer divided by zero.
template <void (*kKernel)(KernelCall&)>
void dividing(KernelCall& c) {
  try {
    kKernel(c);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kValue) throw;
    fail_value("{}: {}", c.op().name(), e.what());
  }
}
void zero_grads(Grad& g) {
  for (size_t i = 0; i < g.n_in(); ++i)
    if (g.needs(i)) g.dx(i, reduce_to(zeros_like(g.dy()), g.in_shape(i)));
}
void integer_alpha(const Infer& c) {
  if (!is_floating(c.dtype_of(0)) && c.scalar("alpha"_attr).is_float())
    fail_type("{}: alpha {} is a floating point number, the tensors are {}. Pass an integer, or convert the tensors.",
              c.op().public_name(), c.scalar("alpha"_attr).as_double(), name(c.dtype_of(0)));
}
void fmod_grad(Grad& g) {
  if (g.needs(0)) g.dx(0, reduce_to(g.dy(), g.in_shape(0)));
  if (g.needs(1)) g.dx(1, reduce_to(neg(mul(g.dy(), trunc(div(g.x(0), g.x(1))))), g.in_shape(1)));
}
void remainder_grad(Grad& g) {
  if (g.needs(0)) g.dx(0, reduce_to(g.dy(), g.in_shape(0)));
  if (g.needs(1)) g.dx(1, reduce_to(neg(mul(g.dy(), floor(div(g.x(0), g.x(1))))), g.in_shape(1)));
}

}  // namespace

HOLON_BINARY(add, Add, kSame,
             .doc("x + other, element by element, with broadcasting; x + alpha * other if alpha is given.",
                  "add(ones(2, 3), ones(3))")
                 .linear()
                 .grad(add_grad),
             .doc("x + value.").grad(same_grad));
HOLON_BINARY(sub, Sub, kSame,
             .doc("x - other, element by element, with broadcasting; x - alpha * other if alpha is given.",
                  "sub(ones(2, 3), ones(3))")
                 .infer(sub_infer)
                 .linear()
                 .grad(sub_grad),
             .doc("x - value, or value - x if reverse.").infer(sub_infer).grad(sub_scalar_grad));
HOLON_BINARY(mul, Mul, kSame,
             .doc("x * other, element by element, with broadcasting.", "mul(ones(2, 3), ones(3))")
                 .linear_in({0, 1})
                 .saves({0, 1})
                 .grad(mul_grad),
             .doc("x * value.").linear().grad(mul_scalar_grad));
HOLON_BINARY(div, Div, kFloat,
             .doc("x / other, element by element, with broadcasting. Integers are divided as float32. rounding_mode: "
                  "'floor' or 'trunc'.",
                  "div(ones(2, 3), ones(3))")
                 .linear_in({0})
                 .saves({0, 1})
                 .grad(div_grad),
             .doc("x / value, or value / x if reverse.").rule(div_scalar_rule).saves({0}).grad(div_scalar_grad));
HOLON_BINARY(pow, Pow, kSame,
             .doc("x to the power of other, with broadcasting.", "pow(ones(2, 3), ones(3))")
                 .autocast(Autocast::kFloat32)
                 .saves({0, 1}, {0})
                 .grad(pow_grad),
             .doc("x to the power of value, or value to that of x if reverse.")
                 .autocast(Autocast::kFloat32)
                 .infer(pow_scalar_infer)
                 .saves({0}, {0})
                 .grad(pow_scalar_grad));
HOLON_BINARY(maximum, Maximum, kSame,
             .doc("The larger of x and other, element by element; NaN if either is NaN.",
                  "maximum(ones(2, 3), zeros(3))")
                 .saves({0, 1})
                 .grad([](Grad& g) { extremum_grad(g, true); }),
             .doc("The larger of x and value.").saves({0}).grad([](Grad& g) {
               g.dx(0, mul(g.dy(), cast(ge(g.x(), g.scalar("value"_attr)), g.dy().dtype())));
             }));
HOLON_BINARY(minimum, Minimum, kSame,
             .doc("The smaller of x and other, element by element; NaN if either is NaN.",
                  "minimum(ones(2, 3), zeros(3))")
                 .saves({0, 1})
                 .grad([](Grad& g) { extremum_grad(g, false); }),
             .doc("The smaller of x and value.").saves({0}).grad([](Grad& g) {
               g.dx(0, mul(g.dy(), cast(le(g.x(), g.scalar("value"_attr)), g.dy().dtype())));
             }));
HOLON_BINARY(floor_divide, FloorDivide, kSame,
             .doc("x / other rounded down. Errors: an integer divided by zero (ValueError).",
                  "floor_divide(ones(2, 3), ones(3))")
                 .kernel(dividing<binary_kernel<BinaryOp::FloorDivide>>)
                 .grad(zero_grads),
             .doc("x / value rounded down.").kernel(dividing<scalar_kernel<BinaryOp::FloorDivide>>).grad(zero_grads));
HOLON_BINARY(remainder, Remainder, kSame,
             .doc("x modulo other, with the sign of other.", "remainder(ones(2, 3), ones(3))")
                 .kernel(dividing<binary_kernel<BinaryOp::Remainder>>)
                 .saves({0, 1})
                 .grad(remainder_grad),
             .doc("x modulo value.")
                 .kernel(dividing<scalar_kernel<BinaryOp::Remainder>>)
                 .saves({0})
                 .grad(remainder_scalar_grad));
HOLON_BINARY(fmod, Fmod, kSame,
             .doc("The remainder of x / other, with the sign of x.", "fmod(ones(2, 3), ones(3))")
                 .kernel(dividing<binary_kernel<BinaryOp::Fmod>>)
                 .saves({0, 1})
                 .grad(fmod_grad),
             .doc("The remainder of x / value.")
                 .kernel(dividing<scalar_kernel<BinaryOp::Fmod>>)
                 .saves({0})
                 .grad(fmod_scalar_grad));
HOLON_ALIAS(subtract, sub);
HOLON_ALIAS(multiply, mul);
HOLON_ALIAS(divide, div);
HOLON_ALIAS(true_divide, div);

// The forms of add, sub and div with a keyword.
HOLON_OP(add_scaled, "add_scaled(Tensor x, Tensor other, *, Scalar alpha) -> Tensor")
    .doc("x + alpha * other.", "add(ones(2, 3), ones(3), alpha=0.5)")
    .overload_of("add")
    .python_only()
    .promotes()
    .wraps_numbers()
    .elementwise()
    .linear()
    .in_place()
    .infer([](Infer& c) {
      integer_alpha(c);
      c.out(broadcast_shapes(c.shape(0), c.shape(1), "add"), c.dtype_of(0));
    })
    .kernel([](KernelCall& c) { kernels::add_scaled(c.in(0), c.in(1), c.scalar("alpha"_attr), c.out()); })
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(g.dy(), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(mul(g.dy(), g.scalar("alpha"_attr)), g.in_shape(1)));
    });
HOLON_OP(sub_scaled, "sub_scaled(Tensor x, Tensor other, *, Scalar alpha) -> Tensor")
    .doc("x - alpha * other.", "sub(ones(2, 3), ones(3), alpha=0.5)")
    .overload_of("sub")
    .python_only()
    .promotes()
    .wraps_numbers()
    .elementwise()
    .linear()
    .in_place()
    .infer([](Infer& c) {
      integer_alpha(c);
      c.require_dtype(c.dtype_of(0) != boolean, "bools cannot be subtracted", "Use logical_xor() or ^.");
      c.out(broadcast_shapes(c.shape(0), c.shape(1), "sub"), c.dtype_of(0));
    })
    .kernel([](KernelCall& c) {
      Scalar alpha = c.scalar("alpha"_attr);
      kernels::add_scaled(c.in(0), c.in(1), alpha.is_float() ? Scalar(-alpha.as_double()) : Scalar(-alpha.as_int()),
                          c.out());
    })
    .grad([](Grad& g) {
      if (g.needs(0)) g.dx(0, reduce_to(g.dy(), g.in_shape(0)));
      if (g.needs(1)) g.dx(1, reduce_to(mul(g.dy(), -g.scalar("alpha"_attr).as_double()), g.in_shape(1)));
    });
HOLON_OP(div_rounded, "div_rounded(Tensor x, Tensor other, *, str? rounding_mode) -> Tensor")
    .doc("x / other with broadcasting, rounded down if rounding_mode is 'floor', and towards zero if it is 'trunc'.",
         "div(full([2, 3], 7.0), full([3], 2.0), rounding_mode='floor')")
    .overload_of("div")
    .python_only()
    .wraps_numbers()
    .in_place()
    .body([](BodyCall& c) {
      std::string_view mode = c.has("rounding_mode"_attr) ? c.text("rounding_mode"_attr) : "";
      if (mode == "floor")
        c.out.push_back(floor_divide(c.in(0), c.in(1)));
      else if (mode == "trunc")
        c.out.push_back(truncated_divide(c.in(0), c.in(1)));
      else if (mode.empty())
        c.out.push_back(div(c.in(0), c.in(1)));
      else
        fail_value("div: rounding_mode is '{}'; it must be None, 'floor' or 'trunc'.", mode);
    });
HOLON_OP(truncated_divide, "truncated_divide(Tensor x, Tensor other) -> Tensor")
    .doc("x / other rounded towards zero.")
    .hidden()
    .promotes()
    .infer_broadcast()
    .elementwise()
    .kernel(dividing<truncated_kernel>)
    .grad(zero_grads);

HOLON_OP(sum_to_size, "sum_to_size(Tensor x, int... size) -> Tensor")
    .doc("Sum of x over the axes along which a tensor of the given size broadcasts to x.",
         "sum_to_size(ones(2, 3), 1, 3)")
    .body([](BodyCall& c) {
      Dims size(c.ints("size"_attr));
      const Tensor& x = c.in(0);
      int lead = x.ndim() - size.size();
      Dims axes;
      for (int i = 0; i < x.ndim(); ++i) {
        bool fits = i < lead || size[i - lead] == x.shape()[i] || size[i - lead] == 1;
        if (lead < 0 || !fits)
          fail_value("sum_to_size: a tensor of size {} does not broadcast to x {}.", size, x.shape());
        if (i < lead || (size[i - lead] == 1 && x.shape()[i] != 1)) axes.push_back(i);
      }
      Tensor y = axes.empty() ? x : sum(x, axes, true);
      c.out.push_back(y.shape() == size ? y : reshape(y, size));
    });

}  // namespace holon::ops
