// Comparisons, logic and bits. Their results are bools or integers: none has a gradient.
#include "holon/ops/compare.h"

#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

void bits_infer(Infer& c) {
  c.require_dtype(!is_floating(c.dtype_of(0)), "takes integers and bools only",
                  "Convert the floating point operand first, e.g. x.to(int64).");
  c.out(c.n_in() == 2 ? broadcast_shapes(c.shape(0), c.shape(1), c.op().name()) : c.shape(0), c.dtype_of(0));
}
void shift_infer(Infer& c) {
  c.require_dtype(c.dtype_of(0) != boolean, "bools cannot be shifted", "Convert them first, e.g. x.to(int64).");
  bits_infer(c);
}

}  // namespace

HOLON_BINARY(eq, Eq, kBool, .doc("x == other, as bool.", "eq(ones(2), ones(2))"), .doc("x == value, as bool."));
HOLON_BINARY(ne, Ne, kBool, .doc("x != other, as bool.", "ne(ones(2), ones(2))"), .doc("x != value, as bool."));
HOLON_BINARY(lt, Lt, kBool, .doc("x < other, as bool.", "lt(ones(2), ones(2))"), .doc("x < value, as bool."));
HOLON_BINARY(le, Le, kBool, .doc("x <= other, as bool.", "le(ones(2), ones(2))"), .doc("x <= value, as bool."));
HOLON_BINARY(gt, Gt, kBool, .doc("x > other, as bool.", "gt(ones(2), ones(2))"), .doc("x > value, as bool."));
HOLON_BINARY(ge, Ge, kBool, .doc("x >= other, as bool.", "ge(ones(2), ones(2))"), .doc("x >= value, as bool."));
HOLON_BINARY(logical_and, LogicalAnd, kBool, .doc("Whether both are not zero.", "logical_and(ones(2), zeros(2))"),
             .doc("x and value."));
HOLON_BINARY(logical_or, LogicalOr, kBool, .doc("Whether either is not zero.", "logical_or(ones(2), zeros(2))"),
             .doc("x or value."));
HOLON_BINARY(logical_xor, LogicalXor, kBool, .doc("Whether exactly one is not zero.", "logical_xor(ones(2), zeros(2))"),
             .doc("x xor value."));
HOLON_ALIAS(not_equal, ne);
HOLON_ALIAS(less, lt);
HOLON_ALIAS(less_equal, le);
HOLON_ALIAS(greater, gt);
HOLON_ALIAS(greater_equal, ge);

HOLON_BINARY(bitwise_and, BitAnd, kSame,
             .doc("x & other, bit by bit.", "bitwise_and(arange(4), arange(4))").infer(bits_infer),
             .doc("x & value.").infer(bits_infer));
HOLON_BINARY(bitwise_or, BitOr, kSame,
             .doc("x | other, bit by bit.", "bitwise_or(arange(4), arange(4))").infer(bits_infer),
             .doc("x | value.").infer(bits_infer));
HOLON_BINARY(bitwise_xor, BitXor, kSame,
             .doc("x ^ other, bit by bit.", "bitwise_xor(arange(4), arange(4))").infer(bits_infer),
             .doc("x ^ value.").infer(bits_infer));
HOLON_BINARY(bitwise_left_shift, LeftShift, kSame,
             .doc("x with its bits shifted left by other; 0 if other is at least the width of the type.",
                  "bitwise_left_shift(arange(4), arange(4))")
                 .infer(shift_infer),
             .doc("x << value, or value << x if reverse.").infer(shift_infer));
HOLON_BINARY(bitwise_right_shift, RightShift, kSame,
             .doc("x with its bits shifted right by other; the sign is kept.",
                  "bitwise_right_shift(arange(4), arange(4))")
                 .infer(shift_infer),
             .doc("x >> value, or value >> x if reverse.").infer(shift_infer));

HOLON_OP(isclose, "isclose(Tensor x, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor")
    .doc("Whether |x - other| <= atol + rtol * |other|, element by element. Equal infinities are close; NaN is close "
         "to NaN if equal_nan.",
         "isclose(ones(2), ones(2))")
    .wraps_numbers()
    .body([](BodyCall& c) {
      Tensor x = c.in(0), y = c.in(1);
      double rtol = c.f("rtol"_attr), atol = c.f("atol"_attr);
      if (!(rtol >= 0) || !(atol >= 0))
        fail_value("isclose: rtol is {} and atol {}; neither may be negative.", rtol, atol);
      broadcast_shapes(x.shape(), y.shape(), "isclose");
      NoGradGuard no_grad;
      // Differences of unsigned integers would wrap around.
      if (!is_floating(x.dtype())) x = cast(x, float64);
      if (!is_floating(y.dtype())) y = cast(y, float64);
      Tensor difference = abs(sub(x, y));
      Tensor near = logical_and(isfinite(difference), le(difference, add(mul(abs(y), rtol), atol)));
      Tensor close = logical_or(eq(x, y), near);
      if (c.b("equal_nan"_attr)) close = logical_or(close, logical_and(isnan(x), isnan(y)));
      c.out.push_back(close);
    });
HOLON_OP(allclose,
         "allclose(Tensor x, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False) -> Tensor")
    .doc("Whether all elements are close according to isclose(). Collective for global tensors.",
         "allclose(ones(2), ones(2))")
    .wraps_numbers()
    .gives_number()
    .body([](BodyCall& c) {
      c.out.push_back(all(isclose(c.in(0), c.in(1), c.f("rtol"_attr), c.f("atol"_attr), c.b("equal_nan"_attr))));
    });

}  // namespace holon::ops
