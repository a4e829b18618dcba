// What the elementwise families share: one macro line declares an op.
#pragma once

#include "holon/dispatch/dispatch.h"
#include "holon/kernels/elementwise.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/compare.h"
#include "holon/ops/unary.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

using kernels::BinaryOp;
using kernels::UnaryOp;

template <BinaryOp kOp>
void binary_kernel(KernelCall& c) {
  kernels::binary(kOp, c.in(0), c.in(1), c.out());
}
template <BinaryOp kOp>
void scalar_kernel(KernelCall& c) {
  kernels::binary_scalar(kOp, c.in(0), c.scalar("value"_attr), c.out(), c.b("reverse"_attr));
}
template <UnaryOp kOp>
void unary_kernel(KernelCall& c) {
  kernels::unary(kOp, c.in(0), c.out());
}

// The sum of g over the axes along which an operand of that shape was broadcast.
inline Tensor reduce_to(const Tensor& g, const Dims& shape) { return g.shape() == shape ? g : sum_to_size(g, shape); }

// On a tensor without axes the op gives its input 0 back, whatever else it gives: addends stay addends.
inline void identity_rule(RuleCall& r) {
  Signature s;
  for (size_t i = 0; i < r.in.size(); ++i) s.in.push_back(i == 0 ? sbp::partial_sum() : sbp::broadcast());
  for (size_t o = 0; o < r.out.size(); ++o) s.out.push_back(o == 0 ? sbp::partial_sum() : sbp::broadcast());
  r.rule.add(s);
}

// The root of what is not negative, with the gradient 0 at 0.
inline Tensor root(const Tensor& x) {
  Tensor zero = eq(x, 0.0);
  return masked_fill(sqrt(masked_fill(x, zero, 1.0)), zero, 0.0);
}

// What kind of op a macro line declares.
enum class Result { kSame, kFloat, kBool };  // dtype of the result: the operands', theirs or float32, bool

OpBuilder define_unary(const char* name, void (*kernel)(KernelCall&), Result result,
                       const char* file = __builtin_FILE());
OpBuilder define_binary(const char* name, void (*kernel)(KernelCall&), Result result,
                        const char* file = __builtin_FILE());
OpBuilder define_scalar(const char* name, void (*kernel)(KernelCall&), Result result,
                        const char* file = __builtin_FILE());

}  // namespace holon::ops

// HOLON_UNARY(exp, Exp, kFloat).doc(...).grad(...): "exp(Tensor x) -> Tensor" and exp_().
#define HOLON_UNARY(name, kernel_op, result)                                                              \
  static const ::holon::OpBuilder holon_op_##name =                                                       \
      ::holon::ops::define_unary(#name, ::holon::ops::unary_kernel<::holon::kernels::UnaryOp::kernel_op>, \
                                 ::holon::ops::Result::result)

// HOLON_BINARY(mul, Mul, kSame, tensor_part, scalar_part): declares "mul(Tensor x, Tensor other) -> Tensor" and
// "mul_scalar(Tensor x, Scalar value, *, bool reverse=False) -> Tensor", which takes over when an operand is a number;
// the last two arguments add doc, gradient and linearity to each, as chains of builder calls.
#define HOLON_BINARY(name, kernel_op, result, tensor_part, scalar_part)                                      \
  static const ::holon::OpBuilder holon_op_##name =                                                          \
      ::holon::ops::define_binary(#name, ::holon::ops::binary_kernel<::holon::kernels::BinaryOp::kernel_op>, \
                                  ::holon::ops::Result::result) tensor_part;                                 \
  static const ::holon::OpBuilder holon_op_##name##_scalar =                                                 \
      ::holon::ops::define_scalar(#name, ::holon::ops::scalar_kernel<::holon::kernels::BinaryOp::kernel_op>, \
                                  ::holon::ops::Result::result) scalar_part
