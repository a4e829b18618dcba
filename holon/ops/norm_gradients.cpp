#include "holon/ops/norm_gradients.h"

#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"

namespace holon::ops {

Tensor in_norm_dtype(const Tensor& t) { return t.dtype() == float16 || t.dtype() == bfloat16 ? cast(t, float32) : t; }

NormGradients norm_gradients(const Tensor& dy, const Tensor& given, const Tensor& rstd, const Dims& axes,
                             bool centred) {
  const Tensor x = in_norm_dtype(given), g = in_norm_dtype(dy);
  const Tensor away = centred ? sub(x, mean(x, axes, true)) : x, variance = mean(square(away), axes, true);
  const Tensor eps = sub(reciprocal(square(rstd.detach())), variance.detach());
  const Tensor scale = rsqrt(add(variance, eps)), normalised = mul(away, scale);
  Tensor dx = sub(g, mul(normalised, mean(mul(g, normalised), axes, true)));
  if (centred) dx = sub(dx, mean(g, axes, true));
  return {mul(dx, scale), normalised};
}

}  // namespace holon::ops
