#include "holon/dispatch/autocast.h"

#include <unordered_map>

#include "holon/base/context.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/record.h"
#include "holon/op_names/cast.h"
#include "holon/op_names/float8.h"

namespace holon {

namespace {

struct CastLeaf {
  Tensor leaf, cast;  // the leaf is held, so that its address stays its own
  uint32_t version;
};

struct State {
  AutocastMode mode;
  std::unordered_map<const TensorImpl*, CastLeaf> leaves;
};

State& state() { return Context::current().part<State>(); }

uint32_t version_of(const Tensor& t) { return t.array().defined() ? t.array().storage->version : 0; }

Tensor cast_to(const Tensor& t, DType dtype) {
  Attrs a;
  a.push_dtype(dtype);
  return dispatch_one(op::cast, {t}, a);
}

// float8 has scales, which are the caller's.
bool is_cast(DType dtype) { return is_floating(dtype) && !is_float8(dtype); }

// What products run in.
DType computed_in(const AutocastMode& mode) { return is_float8(mode.dtype) ? bfloat16 : mode.dtype; }

Tensor call_on(const OpName& op, const Tensor& t, DType dtype, int64_t rows, int64_t columns) {
  Attrs a;
  a.push_dtype(dtype);
  a.push_int(rows);
  a.push_int(columns);
  return dispatch_one(op, {t}, a);
}

// t rounded by its role's scale; its largest magnitude counts if asked.
Tensor rounded_by(Float8Scales& scales, Float8Role role, const Tensor& t, DType dtype, bool counts) {
  Attrs a;
  a.push_dtype(dtype);
  Tensor& amax = scales.amax_of(role);
  TensorVec out = dispatch(op::round_float8_delayed, {t, scales.scale_of(role), amax}, a);
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
    return {rounded_by(scales_, Float8Role::kGradient, grads[0], float8_e5m2, true)};
  }

 private:
  Float8Scales scales_;
};

Tensor lowered(const Tensor& t, State& s) {
  const DType dtype = computed_in(s.mode);
  const bool keep = s.mode.cache && t.is_leaf() && t.requires_grad() && t.dtype() == float32;
  if (!keep) return cast_to(t, dtype);
  auto it = s.leaves.find(t.impl());
  // One that was made without recording has no way back to the leaf.
  if (it != s.leaves.end() && it->second.version == version_of(t) && it->second.cast.dtype() == dtype &&
      (it->second.cast.requires_grad() || !grad_enabled()))
    return it->second.cast;
  Tensor made = cast_to(t, dtype);
  s.leaves.insert_or_assign(t.impl(), CastLeaf{t, made, version_of(t)});
  return made;
}

}  // namespace

const AutocastMode& autocast_mode() { return state().mode; }

AutocastMode exchange_autocast(const AutocastMode& mode) {
  if (mode.enabled && !is_autocast_dtype(mode.dtype))
    fail_value("autocast: the dtype is {}; it must be bfloat16, float16, float8_e4m3fn or float8_e5m2.",
               name(mode.dtype));
  if (mode.float8_block < 0)
    fail_value("autocast: float8_block is {}; it must be 0, for one scale for a tensor, or the side of a block.",
               mode.float8_block);
  if (mode.recipe && mode.enabled && (!is_float8(mode.dtype) || mode.float8_block))
    fail_value("autocast: a recipe with the dtype {} and float8_block {}; a recipe takes a float8 dtype and no blocks.",
               name(mode.dtype), mode.float8_block);
  State& s = state();
  AutocastMode before = s.mode;
  s.mode = mode;
  if (mode.depth == 0) s.leaves.clear();
  Context::current().set_autocast(mode.enabled);
  return before;
}

void clear_autocast_cache() { state().leaves.clear(); }

std::optional<GradientRounding> autocast_inputs(const OpDef& op, TensorVec& inputs) {
  if (op.autocast == Autocast::kNone) return {};
  DType widest = DType::kBool;
  for (auto& t : inputs) {
    if (!t.defined() || !is_cast(t.dtype())) continue;
    // Who computes in float64 wants its digits.
    if (t.dtype() == float64) return {};
    widest = widest == DType::kBool ? t.dtype() : promote(widest, t.dtype());
  }
  if (widest == DType::kBool) return {};
  State& s = state();
  const TensorVec given = s.mode.recipe ? inputs : TensorVec();
  for (auto& t : inputs) {
    if (!t.defined() || !is_cast(t.dtype())) continue;
    const DType wanted = op.autocast == Autocast::kLower ? computed_in(s.mode)
        : op.autocast == Autocast::kFloat32              ? float32
                                                         : widest;
    if (t.dtype() == wanted) continue;
    t = op.autocast == Autocast::kLower ? lowered(t, s) : cast_to(t, wanted);
  }
  // A product that is made of others leaves it to them.
  if (!is_float8(s.mode.dtype) || op.float8_inputs == 0 || op.is_composed(inputs)) return {};
  GradientRounding rounding{s.mode.float8_block};
  size_t weight = 1;
  if (s.mode.recipe)
    for (size_t i : {size_t{1}, size_t{0}})
      if (!rounding.scales && given[i].defined() && given[i].is_leaf()) {
        rounding.scales = s.mode.recipe->scales_of(given[i], s.mode.dtype);
        weight = i;
      }
  // A pass that is not recorded is none of a training step.
  const bool counts = grad_enabled();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!(op.float8_inputs >> i & 1)) continue;
    inputs[i] = rounding.scales ? rounded_by(*rounding.scales, i == weight ? Float8Role::kWeight : Float8Role::kInput,
                                             inputs[i], s.mode.dtype, counts)
                                : call_on(op::round_float8, inputs[i], s.mode.dtype,
                                          i == 0 && rounding.block ? 1 : rounding.block, rounding.block);
  }
  return rounding;
}

void round_gradients(const GradientRounding& how, TensorVec& outputs) {
  for (auto& t : outputs) {
    if (!t.requires_grad()) continue;
    if (!how.scales) {
      t = call_on(op::round_gradient, t, float8_e5m2, how.block ? 1 : 0, how.block);
    } else if (grad_enabled()) {
      Tensor out = t.detach();
      record_node(make_ref<RoundGradient>(*how.scales), {&t, 1}, {&out, 1});
      t = out;
    }
  }
}

}  // namespace holon
