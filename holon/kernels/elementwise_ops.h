// The element-wise operations: one line each, with the value that it computes. Adding an operation is adding its line.
//
// X(name, types, result, value): x, y, z are the inputs and p0, p1, p2 the parameters, all of type T.
//   types   kFloats (float32, float64), kInts (int32, int64), kAll, kDivides (kAll; integers are divided by y != 0).
//           Other dtypes are computed in one of these: float16 and bfloat16 in float32, bool, uint8 and int8 in int32.
//   result  kSame (the type of the inputs) or kBool.
// The functions behind f:: are those of functors.h; they have one body for the CPU's vector loops and for other
// devices.
#pragma once

#define HOLON_UNARY_OPS(X)                                                                               \
  X(Neg, kAll, kSame, -x)                                                                                \
  X(Abs, kAll, kSame, f::abs(x))                                                                         \
  X(Sign, kAll, kSame, T(x > T(0)) - T(x < T(0)) + f::nan_only(x))                                       \
  X(Square, kAll, kSame, x* x)                                                                           \
  X(Cube, kAll, kSame, x* x* x)                                                                          \
  X(Reciprocal, kFloats, kSame, T(1) / x)                                                                \
  X(Sqrt, kFloats, kSame, f::sqrt(x))                                                                    \
  X(Rsqrt, kFloats, kSame, T(1) / f::sqrt(x))                                                            \
  X(Exp, kFloats, kSame, f::exp(x))                                                                      \
  X(Exp2, kFloats, kSame, f::exp2(x))                                                                    \
  X(Expm1, kFloats, kSame, f::expm1(x))                                                                  \
  X(Log, kFloats, kSame, f::log(x))                                                                      \
  X(Log2, kFloats, kSame, f::log2(x))                                                                    \
  X(Log10, kFloats, kSame, f::log10(x))                                                                  \
  X(Log1p, kFloats, kSame, f::log1p(x))                                                                  \
  X(Sin, kFloats, kSame, f::sin(x))                                                                      \
  X(Cos, kFloats, kSame, f::cos(x))                                                                      \
  X(Tan, kFloats, kSame, f::tan(x))                                                                      \
  X(Asin, kFloats, kSame, f::asin(x))                                                                    \
  X(Acos, kFloats, kSame, f::acos(x))                                                                    \
  X(Atan, kFloats, kSame, f::atan(x))                                                                    \
  X(Sinh, kFloats, kSame, f::sinh(x))                                                                    \
  X(Cosh, kFloats, kSame, f::cosh(x))                                                                    \
  X(Tanh, kFloats, kSame, f::tanh(x))                                                                    \
  X(Asinh, kFloats, kSame, f::asinh(x))                                                                  \
  X(Acosh, kFloats, kSame, f::acosh(x))                                                                  \
  X(Atanh, kFloats, kSame, f::atanh(x))                                                                  \
  X(Erf, kFloats, kSame, f::erf(x))                                                                      \
  X(Erfc, kFloats, kSame, f::erfc(x))                                                                    \
  X(Erfinv, kFloats, kSame, f::erfinv(x))                                                                \
  X(Floor, kAll, kSame, f::floor(x))                                                                     \
  X(Ceil, kAll, kSame, f::ceil(x))                                                                       \
  X(Round, kAll, kSame, f::rint(x))                                                                      \
  X(Trunc, kAll, kSame, f::trunc(x))                                                                     \
  X(Frac, kAll, kSame, x - f::trunc(x))                                                                  \
  X(Sigmoid, kFloats, kSame, f::sigmoid(x))                                                              \
  X(LogSigmoid, kFloats, kSame, -f::softplus(-x))                                                        \
  X(Relu, kAll, kSame, x < T(0) ? T(0) : x)                                                              \
  X(Gelu, kFloats, kSame, f::gelu(x))                                                                    \
  X(GeluTanh, kFloats, kSame, x* f::sigmoid(f::gelu_tanh_inner(x)))                                      \
  X(QuickGelu, kFloats, kSame, x* f::sigmoid(T(1.702) * x))                                              \
  X(Silu, kFloats, kSame, x* f::sigmoid(x))                                                              \
  X(Mish, kFloats, kSame, x* f::tanh_softplus(x))                                                        \
  X(Softsign, kFloats, kSame, x / (T(1) + f::abs(x)))                                                    \
  X(HardSigmoid, kFloats, kSame, f::clamp(x* T(1.0 / 6) + T(0.5), T(0), T(1)))                           \
  X(HardSwish, kFloats, kSame, x* f::clamp(x + T(3), T(0), T(6)) * T(1.0 / 6))                           \
  X(Selu, kFloats, kSame, T(1.0507009873554805) * (x > T(0) ? x : T(1.6732632423543772) * f::expm1(x)))  \
  X(IsNan, kAll, kBool, x != x)                                                                          \
  X(IsInf, kAll, kBool, f::is_inf(x))                                                                    \
  X(IsFinite, kAll, kBool, f::is_finite(x))                                                              \
  X(LogicalNot, kAll, kBool, x == T(0))                                                                  \
  X(BitNot, kInts, kSame, ~x)                                                                            \
  X(LeakyRelu, kFloats, kSame, x > T(0) ? x : p0 * x)                             /* slope */            \
  X(Elu, kFloats, kSame, x > T(0) ? x : p0 * f::expm1(x))                         /* alpha */            \
  X(Celu, kFloats, kSame, x > T(0) ? x : p0 * f::expm1(x / p0))                   /* alpha */            \
  X(Softplus, kFloats, kSame, x* p0 > p1 ? x : f::softplus(x * p0) * (T(1) / p0)) /* beta, threshold */  \
  X(Threshold, kAll, kSame, x <= p0 ? p1 : x)                                     /* threshold, value */ \
  X(SoftShrink, kFloats, kSame, x > p0 ? x - p0 : x < -p0 ? x + p0 : x * T(0))    /* lambda */           \
  X(HardShrink, kFloats, kSame, (x >= -p0) & (x <= p0) ? T(0) : x)                /* lambda */           \
  X(ClampMin, kAll, kSame, x < p0 ? p0 : x)                                                              \
  X(ClampMax, kAll, kSame, x > p0 ? p0 : x)                                                              \
  X(Clamp, kAll, kSame, f::clamp(x, p0, p1))                                                             \
  X(NanToNum, kFloats, kSame, x != x ? p0 : f::is_inf(x) ? (x > T(0) ? p1 : p2) : x) /* nan, +inf, -inf */

#define HOLON_BINARY_OPS(X)                                                                                         \
  X(Add, kAll, kSame, x + y)                                                                                        \
  X(Sub, kAll, kSame, x - y)                                                                                        \
  X(Mul, kAll, kSame, x* y)                                                                                         \
  X(Div, kDivides, kSame, f::div(x, y)) /* integers: truncates */                                                   \
  X(FloorDivide, kDivides, kSame, f::floor_divide(x, y))                                                            \
  X(Remainder, kDivides, kSame, f::remainder(x, y)) /* the sign of y */                                             \
  X(Fmod, kDivides, kSame, f::fmod(x, y))           /* the sign of x */                                             \
  X(Pow, kAll, kSame, f::pow(x, y))                                                                                 \
  X(Maximum, kAll, kSame, (x > y) | (x != x) ? x : y)                                                               \
  X(Minimum, kAll, kSame, (x < y) | (x != x) ? x : y)                                                               \
  X(Atan2, kFloats, kSame, f::atan2(x, y))                                                                          \
  X(Hypot, kFloats, kSame, f::hypot(x, y))                                                                          \
  X(LogAddExp, kFloats, kSame, f::log_add_exp(x, y))                                                                \
  X(XLogY, kFloats, kSame, (x == T(0)) & (y == y) ? T(0) : x * f::log(y))                                           \
  X(SquaredDifference, kAll, kSame, (x - y) * (x - y))                                                              \
  X(AddScaled, kAll, kSame, x + p0 * y)                /* alpha */                                                  \
  X(Lerp, kFloats, kSame, x + p0 * (y - x))            /* weight */                                                 \
  X(SmoothL1, kFloats, kSame, f::smooth_l1(x - y, p0)) /* beta */                                                   \
  X(Huber, kFloats, kSame, f::huber(x - y, p0))        /* delta */                                                  \
  X(Eq, kAll, kBool, x == y)                                                                                        \
  X(Ne, kAll, kBool, x != y)                                                                                        \
  X(Lt, kAll, kBool, x < y)                                                                                         \
  X(Le, kAll, kBool, x <= y)                                                                                        \
  X(Gt, kAll, kBool, x > y)                                                                                         \
  X(Ge, kAll, kBool, x >= y)                                                                                        \
  X(LogicalAnd, kAll, kBool, (x != T(0)) & (y != T(0)))                                                             \
  X(LogicalOr, kAll, kBool, (x != T(0)) | (y != T(0)))                                                              \
  X(LogicalXor, kAll, kBool, (x != T(0)) != (y != T(0)))                                                            \
  X(BitAnd, kInts, kSame, x& y)                                                                                     \
  X(BitOr, kInts, kSame, x | y)                                                                                     \
  X(BitXor, kInts, kSame, x ^ y)                                                                                    \
  X(LeftShift, kInts, kSame, f::shift_left(x, y))                                                                   \
  X(RightShift, kInts, kSame, f::shift_right(x, y))                                                                 \
  X(BinaryCrossEntropy, kFloats, kSame, f::binary_cross_entropy(x, y)) /* probability, target */                    \
  X(BinaryCrossEntropyLogits, kFloats, kSame, f::softplus(x) - x * y)  /* logit, target */                          \
  /* Gradients: x is the gradient of the result; y is the result where its name says so, otherwise the input. */    \
  X(ReluBackward, kFloats, kSame, y <= T(0) ? T(0) : x)     /* result or input */                                   \
  X(TanhBackward, kFloats, kSame, x*(T(1) - y * y))         /* result */                                            \
  X(SigmoidBackward, kFloats, kSame, x* y*(T(1) - y))       /* result */                                            \
  X(SqrtBackward, kFloats, kSame, x / (y + y))              /* result */                                            \
  X(RsqrtBackward, kFloats, kSame, T(-0.5) * x * y * y * y) /* result */                                            \
  X(ReciprocalBackward, kFloats, kSame, -x* y* y)           /* result */                                            \
  X(AbsBackward, kFloats, kSame, x*(T(y > T(0)) - T(y < T(0))))                                                     \
  X(SinBackward, kFloats, kSame, x* f::cos(y))                                                                      \
  X(CosBackward, kFloats, kSame, -x* f::sin(y))                                                                     \
  X(ErfBackward, kFloats, kSame, x* T(1.1283791670955126) * f::exp(-y * y))                                         \
  X(GeluBackward, kFloats, kSame, x* f::gelu_slope(y))                                                              \
  X(GeluTanhBackward, kFloats, kSame, x* f::gelu_tanh_slope(y))                                                     \
  X(QuickGeluBackward, kFloats, kSame, x* f::silu_slope(T(1.702) * y))                                              \
  X(SiluBackward, kFloats, kSame, x* f::silu_slope(y))                                                              \
  X(MishBackward, kFloats, kSame, x* f::mish_slope(y))                                                              \
  X(LogSigmoidBackward, kFloats, kSame, x* f::sigmoid(-y))                                                          \
  X(SoftplusBackward, kFloats, kSame, y* p0 > p1 ? x : x * f::sigmoid(y * p0))                                      \
  X(SoftsignBackward, kFloats, kSame, x / ((T(1) + f::abs(y)) * (T(1) + f::abs(y))))                                \
  X(HardSigmoidBackward, kFloats, kSame, (y > T(-3)) & (y < T(3)) ? x * T(1.0 / 6) : T(0))                          \
  X(HardSwishBackward, kFloats, kSame, y<T(-3) ? T(0) : y> T(3) ? x : x*(y * T(1.0 / 3) + T(0.5)))                  \
  X(SeluBackward, kFloats, kSame, x* T(1.0507009873554805) * (y > T(0) ? T(1) : T(1.6732632423543772) * f::exp(y))) \
  X(LeakyReluBackward, kFloats, kSame, y > T(0) ? x : p0 * x)                                                       \
  X(EluBackward, kFloats, kSame, y > T(0) ? x : x * p0 * f::exp(y))                                                 \
  X(CeluBackward, kFloats, kSame, y > T(0) ? x : x * f::exp(y / p0))                                                \
  X(ThresholdBackward, kFloats, kSame, y <= p0 ? T(0) : x)                                                          \
  X(ShrinkBackward, kFloats, kSame, (y >= -p0) & (y <= p0) ? T(0) : x)                                              \
  X(ClampMinBackward, kFloats, kSame, y < p0 ? T(0) : x)                                                            \
  X(ClampMaxBackward, kFloats, kSame, y > p0 ? T(0) : x)                                                            \
  X(ClampBackward, kFloats, kSame, (y < p0) | (y > p1) ? T(0) : x)                                                  \
  X(HardtanhBackward, kFloats, kSame, (y <= p0) | (y >= p1) ? T(0) : x)

#define HOLON_TERNARY_OPS(X)                                                                       \
  X(AddCMul, kAll, kSame, x + p0 * y * z)                                                          \
  X(AddCDiv, kFloats, kSame, x + p0 * y / z)                                                       \
  X(LerpTensor, kFloats, kSame, x + z * (y - x))                                                   \
  X(ClampTensor, kAll, kSame, f::clamp(x, y, z))                                                   \
  /* Gradients: x is the gradient of the result, y and z the inputs; the gradient is that of y. */ \
  X(SquaredDifferenceBackward, kFloats, kSame, x*(y - z) * T(2))                                   \
  X(SmoothL1Backward, kFloats, kSame, x* f::clamp((y - z) / p0, T(-1), T(1)))                      \
  X(HuberBackward, kFloats, kSame, x* f::clamp(y - z, -p0, p0))                                    \
  X(BinaryCrossEntropyBackward, kFloats, kSame, x*(y - z) / f::at_least(y * (T(1) - y), T(1e-12))) \
  X(BinaryCrossEntropyLogitsBackward, kFloats, kSame, x*(f::sigmoid(y) - z))

namespace holon::kernels {

#define HOLON_OP_NAME(name, types, result, value) name,
enum class UnaryOp : unsigned char { HOLON_UNARY_OPS(HOLON_OP_NAME) kCount };
enum class BinaryOp : unsigned char { HOLON_BINARY_OPS(HOLON_OP_NAME) kCount };
enum class TernaryOp : unsigned char { HOLON_TERNARY_OPS(HOLON_OP_NAME) kCount };
#undef HOLON_OP_NAME

}  // namespace holon::kernels
