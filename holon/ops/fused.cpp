// Names of fused ops, as compositions. Attention itself is fused in attention.cpp.
#include <algorithm>
#include <cmath>

#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::ops {
namespace {

// x + b, with b [n] along an axis of x.
Tensor with_bias(const BodyCall& c) {
  const Tensor &a = c.in(0), &b = c.in(1);
  int axis = normalize_axis(c.i("axis"_attr), a.ndim(), c.op().name());
  if (a.ndim() == 0 || b.ndim() != 1 || b.shape()[0] != a.shape()[axis])
    fail_value("{}: b is {}; it must have one value for each index along axis {} of x {}.", c.op().name(), b.shape(),
               axis, a.shape());
  Dims s = Dims::filled(a.ndim() - axis, 1);
  s[0] = b.shape()[0];
  return add(a, reshape(b, s));
}

Tensor dropped(const BodyCall& c, const Tensor& x, bool training) {
  double p = c.f("p"_attr);
  if (!(p >= 0 && p <= 1)) fail_value("{}: p is {}; a probability must be from 0 to 1.", c.op().name(), p);
  return dropout(x, p, training);
}

void require_bool(const BodyCall& c, const Tensor& mask) {
  if (mask.dtype() != boolean)
    fail_type("{}: the mask is {}; it must be bool. Compare first, e.g. mask != 0.", c.op().name(), name(mask.dtype()));
}

// softmax over the last axis of x scale where mask is true, and fill_value elsewhere.
Tensor masked_softmax(const BodyCall& c, const Tensor& x, const Tensor& mask) {
  require_bool(c, mask);
  return softmax(masked_fill(mul(x, c.f("scale"_attr)), logical_not(mask), Scalar(c.f("fill_value"_attr))), -1);
}

// x scale up to a diagonal, fill beyond it.
Tensor scaled_tril(const Tensor& x, int64_t diagonal, double fill, double scale) {
  diagonal = std::clamp<int64_t>(diagonal, -(int64_t{1} << 40), int64_t{1} << 40);
  Tensor lower = tril(mul(x, scale), diagonal);
  return fill == 0 ? lower : add(lower, mul(triu(ones_like(x.detach()), diagonal + 1), fill));
}

}  // namespace

HOLON_OP(fused_bias_add_gelu, "fused_bias_add_gelu(Tensor x, Tensor b, *, int axis) -> Tensor")
    .doc("gelu(x + b) with b along an axis of x.", "fused_bias_add_gelu(ones(2, 3), ones(3), axis=1)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(gelu(with_bias(c))); });
HOLON_OP(fused_bias_add_dropout, "fused_bias_add_dropout(Tensor x, Tensor b, *, float p=0.5, int axis) -> Tensor")
    .doc("dropout(x + b) with b along an axis of x.", "fused_bias_add_dropout(ones(2, 3), ones(3), p=0.0, axis=1)")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(dropped(c, with_bias(c), true)); });
HOLON_OP(fused_fast_gelu_mul, "fused_fast_gelu_mul(Tensor x, Tensor multiplier) -> Tensor")
    .doc("gelu by tanh of x, times multiplier, both [...].", "fused_fast_gelu_mul(ones(2), ones(2))")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(mul(gelu(c.in(0), {.approximate = "tanh"}), c.in(1))); });

HOLON_OP(fused_scale_mask_softmax,
         "fused_scale_mask_softmax(Tensor x, Tensor mask, *, float fill_value=0.0, float scale=1.0) -> Tensor")
    .doc("softmax over the last axis of x scale where mask is true, and of fill_value elsewhere.",
         "fused_scale_mask_softmax(ones(2, 3), ones(2, 3) > 0)")
    .mask("mask")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(masked_softmax(c, c.in(0), c.in(1))); });
HOLON_OP(fused_scale_mask_softmax_dropout,
         "fused_scale_mask_softmax_dropout(Tensor x, Tensor mask, *, float fill_value=0.0, float scale=1.0, float "
         "p=0.5, bool training=True) -> (Tensor, Tensor)")
    .doc("fused_scale_mask_softmax of x [..., k] with dropout, and without.",
         "fused_scale_mask_softmax_dropout(ones(2, 3), ones(2, 3) > 0, p=0.0)[0]")
    .mask("mask")
    .function_only()
    .body([](BodyCall& c) {
      Tensor y = masked_softmax(c, c.in(0), c.in(1));
      c.out.push_back(dropped(c, y, c.b("training"_attr)));
      c.out.push_back(y);
    });
HOLON_OP(fused_bias_add_scale_mask_softmax_dropout,
         "fused_bias_add_scale_mask_softmax_dropout(Tensor x, Tensor bias, Tensor mask, *, float fill_value=0.0, float "
         "scale=1.0, float p=0.5, bool training=True) -> (Tensor, Tensor)")
    .doc("fused_scale_mask_softmax_dropout of x + bias [..., k].",
         "fused_bias_add_scale_mask_softmax_dropout(ones(2, 3), ones(3), ones(2, 3) > 0, p=0.0)[0]")
    .mask("mask")
    .function_only()
    .body([](BodyCall& c) {
      Tensor y = masked_softmax(c, add(c.in(0), c.in(1)), c.in(2));
      c.out.push_back(dropped(c, y, c.b("training"_attr)));
      c.out.push_back(y);
    });
HOLON_OP(fused_scale_tril,
         "fused_scale_tril(Tensor x, int diagonal=0, float fill_value=0.0, float scale=1.0) -> Tensor")
    .doc("x scale on and below a diagonal of its last two axes, fill_value above it.",
         "fused_scale_tril(ones(2, 2), scale=2.0)")
    .function_only()
    .body([](BodyCall& c) {
      c.out.push_back(scaled_tril(c.in(0), c.i("diagonal"_attr), c.f("fill_value"_attr), c.f("scale"_attr)));
    });
HOLON_OP(fused_scale_tril_softmax_mask_scale,
         "fused_scale_tril_softmax_mask_scale(Tensor x, float p=0.5, int diagonal=0, float tril_scale_value=1.0, float "
         "tril_fill_value=0.0) -> (Tensor, Tensor)")
    .doc("softmax over the last axis of fused_scale_tril, with dropout, and without.",
         "fused_scale_tril_softmax_mask_scale(ones(2, 2), 0.0)[1]")
    .function_only()
    .body([](BodyCall& c) {
      Tensor y =
          softmax(scaled_tril(c.in(0), c.i("diagonal"_attr), c.f("tril_fill_value"_attr), c.f("tril_scale_value"_attr)),
                  -1);
      c.out.push_back(dropped(c, y, true));
      c.out.push_back(y);
    });
HOLON_OP(fused_self_attention,
         "fused_self_attention(Tensor hidden_states, int head_size=8, float alpha=1.0) -> (Tensor, Tensor)")
    .doc("Of hidden_states [length, batch, heads x 3 x head_size], each head's query, key and value side by side: "
         "alpha query keyᵀ [batch, heads, length, length], and value [batch, heads, length, head_size].",
         "fused_self_attention(ones(2, 1, 24))[0].shape")
    .function_only()
    .body([](BodyCall& c) {
      const Tensor& x = c.in(0);
      int64_t head = c.i("head_size"_attr);
      if (x.ndim() != 3 || head < 1 || head > x.shape()[2] || x.shape()[2] % (3 * head))
        fail_value("fused_self_attention: hidden_states is {}; it must be [length, batch, heads x 3 x {}].", x.shape(),
                   head);
      Tensor heads =
          permute(reshape(x, {x.shape()[0], x.shape()[1], x.shape()[2] / (3 * head), 3 * head}), {1, 2, 0, 3});
      Tensor q = slice(heads, 3, 0, head), k = slice(heads, 3, head, 2 * head), v = slice(heads, 3, 2 * head, 3 * head);
      c.out.push_back(matmul(mul(q, c.f("alpha"_attr)), transpose(k, 2, 3)));
      c.out.push_back(v);
    });
HOLON_OP(amp_white_identity, "amp_white_identity(Tensor x) -> Tensor")
    .doc("x [...]; a hint to mixed precision, without effect here, that what follows may use half precision.",
         "amp_white_identity(ones(2))")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(c.in(0)); });
HOLON_OP(amp_black_identity, "amp_black_identity(Tensor x) -> Tensor")
    .doc("x [...]; a hint to mixed precision, without effect here, that what follows must not use half precision.",
         "amp_black_identity(ones(2))")
    .function_only()
    .body([](BodyCall& c) { c.out.push_back(c.in(0)); });

}  // namespace holon::ops
