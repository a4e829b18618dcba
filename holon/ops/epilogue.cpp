// Products together with what follows them. The graph's passes put them in place of pairs of ops, after backward has
// been recorded, so that they have no gradients. Where what follows is not linear in the product, the contracted axis
// is whole.
#include "holon/kernels/epilogue.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/shape.h"

#include "holon/dispatch/dispatch.h"
#include "holon/kernels/gemm.h"
#include "holon/ops/flops.h"
#include "holon/ops/rules.h"
#include "holon/registry/op_def.h"

namespace holon::ops {
namespace {

constexpr std::pair<std::string_view, kernels::Then> kThen[] = {
    {"relu", kernels::Then::kRelu}, {"gelu", kernels::Then::kGelu}, {"gelu_tanh", kernels::Then::kGeluTanh},
    {"add", kernels::Then::kAdd},   {"mul", kernels::Then::kMul},   {"relu_backward", kernels::Then::kReluBackward},
};

kernels::Then then_of(const AttrReader& c) {
  for (auto& [name, then] : kThen)
    if (c.text("then"_attr) == name) return then;
  fail_value("{}: then is '{}'; it must be relu, gelu, gelu_tanh, add, mul or relu_backward.", c.op().name(),
             c.text("then"_attr));
}

// What other must be for what is done with it.
void check_other(const Infer& c, size_t other, const Dims& out) {
  const bool needed = then_of(c) >= kernels::Then::kAdd;
  c.require(c.present(other) == needed, needed ? "other is missing" : "other is not read",
            needed ? "Give it." : "Leave it out.");
  c.require(!needed || c.shape(other) == out, "other does not have the product's shape", "Broadcast it first.");
  c.require_dtype(!needed || c.dtype_of(other) == c.dtype_of(0), "the dtypes differ", "Convert them by to().");
}

Dims linear_shape(const Infer& c) {
  c.require_floating(0);
  c.require(c.ndim(0) >= 1 && c.ndim(1) == 2, "x needs an axis and weight two", "weight is [out, in].");
  c.require(c.shape(0).back() == c.shape(1)[1], "inner sizes differ",
            "weight is [out, in]; its in is the last size of x.");
  if (c.present(2))
    c.require(c.ndim(2) == 1 && c.shape(2)[0] == c.shape(1)[0], "bias is not [out]",
              "Give one value per row of weight.");
  c.require_dtype(c.dtype_of(0) == c.dtype_of(1) && (!c.present(2) || c.dtype_of(2) == c.dtype_of(0)),
                  "the dtypes differ", "Convert them by to().");
  Dims out = c.shape(0);
  out.back() = c.shape(1)[0];
  return out;
}

// The product's operands, and the bias and other behind them where the op has them; what is done is linear in the
// product, and add in other too.
void partial_products(RuleCall& r, int w_axis, bool has_bias) {
  const kernels::Then then = then_of(r);
  if (then < kernels::Then::kAdd) return;
  auto add = [&](Sbp x, Sbp w, Sbp bias, Sbp other) {
    Signature s;
    s.in.push_back(x);
    s.in.push_back(w);
    if (has_bias) s.in.push_back(given(r, 2) ? bias : sbp::broadcast());
    s.in.push_back(other);
    s.out.push_back(sbp::partial_sum());
    r.rule.add(s);
  };
  const Sbp p = sbp::partial_sum(), b = sbp::broadcast(), other = then == kernels::Then::kAdd ? p : b;
  add(p, b, p, other);
  add(b, p, p, other);
  add(sbp::split(r.in[0].shape.size() - 1), sbp::split(w_axis), p, other);
  if (then == kernels::Then::kMul) add(b, b, b, p);
}

const Array* given(const KernelCall& c, size_t i) { return c.present(i) ? &c.in(i) : nullptr; }

}  // namespace

HOLON_OP(linear_then, "linear_then(Tensor x, Tensor weight, Tensor? bias, Tensor? other, *, str then) -> Tensor")
    .doc("linear, then relu, gelu or gelu_tanh of it, or add or mul with other.")
    .flops(product_flops)
    .hidden()
    .infer([](Infer& c) {
      Dims out = linear_shape(c);
      check_other(c, 3, out);
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      apply_rule_text("... K, n K, n, ... n -> ... n", r.in, r.out, r.rule, r.op().name());
      partial_products(r, 1, true);
    })
    .kernel([](KernelCall& c) {
      kernels::linear_then(c.in(0), c.in(1), given(c, 2), then_of(c), given(c, 3), c.out());
    });

HOLON_OP(linear_gelu, "linear_gelu(Tensor x, Tensor weight, Tensor? bias, *, str approximate) -> (Tensor, Tensor)")
    .doc("gelu of linear, and its slope, which backward multiplies by.")
    .flops(product_flops)
    .hidden()
    .infer([](Infer& c) {
      Dims out = linear_shape(c);
      c.require(c.text("approximate"_attr) == "none" || c.text("approximate"_attr) == "tanh",
                "approximate must be 'none' or 'tanh'", "Choose one of them.");
      c.out(out, c.dtype_of(0));
      c.out(out, c.dtype_of(0));
    })
    .rule("... K, n K, n -> ... n, ... n")
    .kernel([](KernelCall& c) {
      kernels::linear_gelu(c.in(0), c.in(1), given(c, 2), c.text("approximate"_attr) == "tanh", c.out(0), c.out(1));
    });

HOLON_OP(matmul_then, "matmul_then(Tensor x, Tensor w, Tensor other, *, str then) -> Tensor")
    .doc("x [..., m, k] @ w [k, n], then add, mul or relu_backward with other [..., m, n].")
    .flops(product_flops)
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.ndim(0) >= 2 && c.ndim(1) == 2, "x needs two axes, w has two", "Leading axes are those of x.");
      c.require(c.shape(0).back() == c.shape(1)[0], "inner sizes differ", "Transpose one of them first.");
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "the dtypes differ", "Convert them by to().");
      Dims out = c.shape(0);
      out.back() = c.shape(1)[1];
      c.require(then_of(c) >= kernels::Then::kAdd, "then takes no other tensor", "It is add, mul or relu_backward.");
      check_other(c, 2, out);
      c.out(out, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      apply_rule_text("... m K, K n, ... m n -> ... m n", r.in, r.out, r.rule, r.op().name());
      partial_products(r, 0, false);
    })
    .kernel([](KernelCall& c) { kernels::matmul_then(c.in(0), c.in(1), then_of(c), &c.in(2), c.out()); });

HOLON_OP(matmul_scaled, "matmul_scaled(Tensor x, Tensor w, *, float alpha) -> Tensor")
    .doc("alpha times the product of x [..., m, k] and w [..., k, n].")
    .flops(product_flops)
    .fuses(Fuses::kMatrices)
    .writes_strides()
    .hidden()
    .infer([](Infer& c) {
      c.require_floating(0);
      c.require(c.ndim(0) >= 2 && c.ndim(1) >= 2, "both need two axes", "Add one by unsqueeze().");
      Dims a = c.shape(0), b = c.shape(1);
      const int64_t m = a[a.size() - 2], k = a.back(), n = b.back();
      c.require(k == b[b.size() - 2], "inner sizes differ", "Transpose one of them first.");
      c.require_dtype(c.dtype_of(0) == c.dtype_of(1), "the dtypes differ", "Convert them by to().");
      a.resize(a.size() - 2);
      b.resize(b.size() - 2);
      Dims out = broadcast_shapes(a, b, c.op().name());
      out.push_back(m);
      out.push_back(n);
      c.out(out, c.dtype_of(0));
    })
    .rule("... m k, ... k n -> ... m n")
    .linear_in({0, 1})
    .kernel([](KernelCall& c) { kernels::matmul(c.in(0), c.in(1), c.out(), c.f("alpha"_attr)); });

}  // namespace holon::ops
