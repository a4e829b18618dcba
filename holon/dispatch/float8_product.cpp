#include "holon/dispatch/float8_product.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "holon/dispatch/call.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/record.h"
#include "holon/kernels/float8.h"
#include "holon/op_names/float8.h"
#include "holon/op_names/matmul.h"

namespace holon {

namespace {

Attrs with_dtype(DType dtype) {
  Attrs a;
  a.push_dtype(dtype);
  return a;
}

Tensor call_on(const OpName& op, const Tensor& t, DType dtype, int64_t rows, int64_t columns) {
  Attrs a = with_dtype(dtype);
  a.push_int(rows);
  a.push_int(columns);
  return dispatch_one(op, {t}, a);
}

// op: round_float8_delayed or quantize_float8_delayed. The largest magnitude counts if asked.
Tensor delayed(const OpName& op, Float8Scales& scales, Float8Role role, const Tensor& t, DType dtype, bool counts) {
  Tensor& amax = scales.amax_of(role);
  TensorVec out = dispatch(op, {t, scales.scale_of(role), amax}, with_dtype(dtype));
  if (counts) {
    NoGradGuard no_grad;
    write_in_place("round_float8", amax, out[1]);
  }
  return out[0];
}

// The gradient of a tensor that is passed on as it is.
class RoundGradient final : public Node {
 public:
  explicit RoundGradient(const Float8Scales& scales) : scales_(scales) {}
  const char* name() const override { return "round_gradient"; }
  void free_saved() override {}
  TensorVec backward(std::span<const Tensor> grads) override {
    return {delayed(op::round_float8_delayed, scales_, Float8Role::kGradient, grads[0], float8_e5m2, true)};
  }

 private:
  Float8Scales scales_;
};

// Numbers of a float8 dtype, and by what they are to be multiplied.
struct Quantized {
  Tensor values, scale;
};

Quantized quantized(const Tensor& t, DType dtype, Float8Scales* scales, Float8Role role, bool counts) {
  const Tensor scale = scales ? scales->scale_of(role) : dispatch_one(op::float8_scale, {t}, with_dtype(dtype));
  const Tensor values = scales ? delayed(op::quantize_float8_delayed, *scales, role, t, dtype, counts)
                               : dispatch_one(op::quantize_float8, {t, scale}, with_dtype(dtype));
  return {values, call("reciprocal", {scale})[0]};
}

Tensor multiplied(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b, DType dtype) {
  return dispatch_one(op::scaled_mm, {a, b, scale_a, scale_b}, with_dtype(dtype));
}

Tensor turned(const Tensor& t) { return call("transpose", {t}, {{"dim0", int64_t{0}}, {"dim1", int64_t{1}}})[0]; }

Tensor reshaped(const Tensor& t, const Dims& shape) {
  return t.shape() == shape ? t : call("reshape", {t}, {{"shape", shape}})[0];
}

// Leading axes as one.
Dims matrix_of(const Dims& shape) { return {shape.back() ? shape.numel() / shape.back() : 0, shape.back()}; }

class ScaledProduct final : public Node {
 public:
  ScaledProduct(Quantized x, Quantized w, bool w_is_turned, const Dims& shape, DType dtype, const Float8Scales* scales)
      : x_(std::move(x)), w_(std::move(w)), w_is_turned_(w_is_turned), shape_(shape), dtype_(dtype) {
    if (scales) scales_ = *scales;
  }
  const char* name() const override { return "scaled_mm"; }
  void free_saved() override { x_ = w_ = {}; }
  TensorVec backward(std::span<const Tensor> grads) override {
    if (grad_enabled())
      fail(ErrorKind::kNotImplemented,
           "backward of a product in float8 has no derivative. Leave the region for this product.");
    const Quantized dy = quantized(reshaped(grads[0], matrix_of(grads[0].shape())), float8_e5m2,
                                   scales_ ? &*scales_ : nullptr, Float8Role::kGradient, true);
    const Tensor dx = multiplied(dy.values, w_is_turned_ ? w_.values : turned(w_.values), dy.scale, w_.scale, dtype_);
    const Tensor dw = w_is_turned_ ? multiplied(turned(dy.values), x_.values, dy.scale, x_.scale, dtype_)
                                   : multiplied(turned(x_.values), dy.values, x_.scale, dy.scale, dtype_);
    return {reshaped(dx, shape_), dw};
  }

 private:
  Quantized x_, w_;
  bool w_is_turned_;
  Dims shape_;
  DType dtype_;
  std::optional<Float8Scales> scales_;
};

// Whether ranks divide no axis of x that is joined with one before it.
bool joins(const Tensor& x) {
  if (x.is_local() || x.ndim() == 2) return true;
  return std::all_of(x.nd_sbp().begin(), x.nd_sbp().end(),
                     [&](Sbp s) { return !s.is_split() || s.is_split(0) || s.is_split(x.ndim() - 1); });
}

}  // namespace

RecipeScales recipe_scales(const AutocastMode& mode, const TensorVec& given) {
  if (!mode.recipe) return {};
  for (size_t i : {size_t{1}, size_t{0}})
    if (given[i].defined() && given[i].is_leaf())
      if (Float8Scales* scales = mode.recipe->scales_of(given[i], mode.dtype)) return {scales, i};
  return {};
}

void round_factors(const OpDef& op, const AutocastMode& mode, const RecipeScales& recipe, TensorVec& inputs) {
  const int64_t block = mode.float8_block;
  // A pass that is not recorded is none of a training step.
  const bool counts = grad_enabled();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!(op.float8_inputs >> i & 1)) continue;
    const Float8Role role = i == recipe.weight ? Float8Role::kWeight : Float8Role::kInput;
    inputs[i] = recipe.scales ? delayed(op::round_float8_delayed, *recipe.scales, role, inputs[i], mode.dtype, counts)
                              : call_on(op::round_float8, inputs[i], mode.dtype, i == 0 && block ? 1 : block, block);
  }
}

void round_gradients(const Float8Product& product, TensorVec& outputs) {
  for (auto& t : outputs) {
    if (!t.requires_grad()) continue;
    if (!product.scales) {
      t = call_on(op::round_gradient, t, float8_e5m2, product.block ? 1 : 0, product.block);
    } else if (grad_enabled()) {
      Tensor out = t.detach();
      record_node(make_ref<RoundGradient>(*product.scales), {&t, 1}, {&out, 1});
      t = out;
    }
  }
}

Tensor scaled_product(const OpDef& op, const AutocastMode& mode, const RecipeScales& recipe, const TensorVec& inputs) {
  const bool is_linear = &op == op::linear;
  if (mode.float8_block || (!is_linear && &op != op::matmul)) return {};
  const Tensor &x = inputs[0], &w = inputs[1];
  if (x.ndim() < 1 || w.ndim() != 2 || x.numel() == 0 || w.numel() == 0 || !joins(x)) return {};
  const Device device = x.impl()->device;
  const bool simulated = x.is_global() && x.placement().simulated();
  const DeviceType type = x.is_global() ? x.placement().device_type() : device.type;
  if (simulated || (x.is_local() && device.is_host()) || !kernels::multiplies_float8(type) ||
      x.size(-1) != w.size(is_linear ? 1 : 0))
    return {};
  const bool recorded = grad_enabled();
  const Float8Role roles[] = {recipe.weight == 0 ? Float8Role::kWeight : Float8Role::kInput,
                              recipe.weight == 1 ? Float8Role::kWeight : Float8Role::kInput};
  Tensor y;
  {
    NoGradGuard guard;
    const Quantized xq = quantized(reshaped(x, matrix_of(x.shape())), mode.dtype, recipe.scales, roles[0], recorded);
    const Quantized wq = quantized(w, mode.dtype, recipe.scales, roles[1], recorded);
    Dims shape = x.shape();
    shape.back() = w.size(is_linear ? 0 : 1);
    const Tensor right = is_linear ? turned(wq.values) : wq.values;
    y = reshaped(multiplied(xq.values, right, xq.scale, wq.scale, x.dtype()), shape);
    if (recorded && (x.requires_grad() || w.requires_grad())) {
      const Tensor in[] = {x, w};
      NoGradGuard with_gradients(true);
      record_node(make_ref<ScaledProduct>(xq, wq, is_linear, x.shape(), x.dtype(), recipe.scales), in, {&y, 1});
    }
  }
  const bool has_bias = inputs.size() > 2 && inputs[2].defined();
  return has_bias ? call("add", {y, inputs[2]})[0] : y;
}

}  // namespace holon
