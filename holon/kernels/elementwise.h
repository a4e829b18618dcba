// Element-wise operations (the list: holon/kernels/elementwise_ops.h).
//
// The caller allocates out with the broadcast shape; inputs broadcast to it, aligned at the right, and may have any
// strides. All inputs have one dtype, and out has it too, or bool where the operation's result is bool. An input may be
// out itself; other overlaps are not supported. float16 and bfloat16 are computed in float32, integers wrap around,
// bool counts as 0 and 1 (so Add is "or"). Errors: an operation that the dtype does not have (TypeError); an integer
// divided by 0 (ValueError).
#pragma once

#include <initializer_list>
#include <optional>

#include "holon/array/array.h"
#include "holon/array/scalar.h"
#include "holon/kernels/elementwise_ops.h"

namespace holon::kernels {

// The parameters p0, p1, p2 of an operation; those that are not given are 0.
struct Params {
  Scalar p[3];
  int count = 0;

  Params() {}
  Params(std::initializer_list<Scalar> list) {
    for (const Scalar& s : list)
      if (count < 3) p[count++] = s;
  }
};
inline const Params kNoParams;

void unary(UnaryOp op, const Array& a, Array& out, const Params& params = kNoParams);
void binary(BinaryOp op, const Array& a, const Array& b, Array& out, const Params& params = kNoParams);
// op(a, scalar), or op(scalar, a) with scalar_on_left. The scalar takes a's dtype.
void binary_scalar(BinaryOp op, const Array& a, Scalar scalar, Array& out, bool scalar_on_left = false,
                   const Params& params = kNoParams);
void ternary(TernaryOp op, const Array& a, const Array& b, const Array& c, Array& out,
             const Params& params = kNoParams);

// out = condition ? a : b. condition is bool (or uint8); a, b and out have one dtype.
void where(const Array& condition, const Array& a, const Array& b, Array& out);
// out = mask ? value : a. The value takes a's dtype.
void masked_fill(const Array& a, const Array& mask, Scalar value, Array& out);
void clamp(const Array& a, std::optional<Scalar> low, std::optional<Scalar> high, Array& out);
// out = a + alpha b
inline void add_scaled(const Array& a, const Array& b, Scalar alpha, Array& out) {
  binary(BinaryOp::AddScaled, a, b, out, {alpha});
}
// out = a + value b c, a + value b / c
inline void addcmul(const Array& a, const Array& b, const Array& c, Scalar value, Array& out) {
  ternary(TernaryOp::AddCMul, a, b, c, out, {value});
}
inline void addcdiv(const Array& a, const Array& b, const Array& c, Scalar value, Array& out) {
  ternary(TernaryOp::AddCDiv, a, b, c, out, {value});
}

// "Add"
const char* name(UnaryOp op);
const char* name(BinaryOp op);
const char* name(TernaryOp op);
// Whether the result is bool, whatever the inputs.
bool gives_bool(UnaryOp op);
bool gives_bool(BinaryOp op);
bool divides(BinaryOp op);  // an integer 0 on the right is an error
// A number as an element of the dtype, in the first bytes.
uint64_t element_bits(Scalar value, DType dtype);

}  // namespace holon::kernels
