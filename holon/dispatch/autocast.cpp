#include "holon/dispatch/autocast.h"

#include <unordered_map>

#include "holon/base/context.h"
#include "holon/dispatch/dispatch.h"
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

Tensor lowered(const Tensor& t, State& s) {
  const bool keep = s.mode.cache && t.is_leaf() && t.requires_grad() && t.dtype() == float32;
  if (!keep) return cast_to(t, s.mode.dtype);
  auto it = s.leaves.find(t.impl());
  // One that was made without recording has no way back to the leaf.
  if (it != s.leaves.end() && it->second.version == version_of(t) && it->second.cast.dtype() == s.mode.dtype &&
      (it->second.cast.requires_grad() || !grad_enabled()))
    return it->second.cast;
  Tensor made = cast_to(t, s.mode.dtype);
  s.leaves.insert_or_assign(t.impl(), CastLeaf{t, made, version_of(t)});
  return made;
}

}  // namespace

const AutocastMode& autocast_mode() { return state().mode; }

AutocastMode exchange_autocast(const AutocastMode& mode) {
  if (mode.enabled && mode.dtype != bfloat16 && mode.dtype != float16)
    fail_value("autocast: the dtype is {}; it must be bfloat16 or float16.", name(mode.dtype));
  State& s = state();
  AutocastMode before = s.mode;
  s.mode = mode;
  if (mode.depth == 0) s.leaves.clear();
  Context::current().set_autocast(mode.enabled);
  return before;
}

void clear_autocast_cache() { state().leaves.clear(); }

void autocast_inputs(const OpDef& op, TensorVec& inputs) {
  if (op.autocast == Autocast::kNone) return;
  DType widest = DType::kBool;
  for (auto& t : inputs) {
    if (!t.defined() || !is_floating(t.dtype())) continue;
    // Who computes in float64 wants its digits.
    if (t.dtype() == float64) return;
    widest = widest == DType::kBool ? t.dtype() : promote(widest, t.dtype());
  }
  if (widest == DType::kBool) return;
  State& s = state();
  for (auto& t : inputs) {
    if (!t.defined() || !is_floating(t.dtype())) continue;
    const DType wanted = op.autocast == Autocast::kLower ? s.mode.dtype
        : op.autocast == Autocast::kFloat32              ? float32
                                                         : widest;
    if (t.dtype() == wanted) continue;
    t = op.autocast == Autocast::kLower ? lowered(t, s) : cast_to(t, wanted);
  }
}

}  // namespace holon
