#include "holon/dispatch/autocast.h"

#include <unordered_map>

#include "holon/base/context.h"
#include "holon/dispatch/dispatch.h"
#include "holon/dispatch/float8_product.h"
#include "holon/op_names/cast.h"

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
  if (mode.enabled && Context::current().layout_free())
    fail_runtime("autocast: products in {} round in an order that depends on the layout, and "
                 "deterministic(layout_free=True) promises that none does. Leave one of the two out.",
                 name(mode.dtype));
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

std::optional<Float8Product> autocast_inputs(const OpDef& op, TensorVec& inputs) {
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
  const RecipeScales recipe = recipe_scales(s.mode, given);
  Float8Product product{s.mode.float8_block, recipe.scales, scaled_product(op, s.mode, recipe, inputs)};
  if (!product.result.defined()) round_factors(op, s.mode, recipe, inputs);
  return product;
}

}  // namespace holon
