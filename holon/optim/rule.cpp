#include "holon/optim/rule.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/dispatch/layout_free.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/optim.h"
#include "holon/optim/over_ranks.h"
#include "holon/tensor/observer.h"
#include "holon/tensor/tracer.h"

namespace holon::optim {

namespace {

const char* rule_name(RuleKind kind) {
  const char* names[] = {"SGD", "Adam", "Adagrad", "Adadelta", "RMSprop", "LAMB", "LARS"};
  return names[static_cast<int>(kind)];
}

kernels::UpdateRule kernel_of(RuleKind kind) {
  using K = kernels::UpdateRule;
  const K kernel[] = {K::kSgd, K::kAdam, K::kAdagrad, K::kAdadelta, K::kRmsprop, K::kLamb, K::kSgd};
  return kernel[static_cast<int>(kind)];
}

bool has_norms(RuleKind kind) { return kind == RuleKind::kLamb || kind == RuleKind::kLars; }

bool uses_master(const Rule& rule, const Tensor& param) {
  return rule.master_weights && size_bytes(param.dtype()) == 2;
}

std::string layout_text(const Tensor& t) {
  return fmt::format("{} {} {}", t.is_global() ? "global" : "local", name(t.dtype()), t.shape());
}

void check_slot(const Rule& rule, const Slot& s, size_t i) {
  const char* what = rule_name(rule.kind);
  const Tensor &p = s.param, &g = s.grad;
  if (!p.defined()) fail_value("{}: parameter {} is undefined.", what, i);
  if (!is_floating(p.dtype()))
    fail_type("{}: parameter {} is of {}; only floating point parameters can be updated. Leave it out.", what, i,
              name(p.dtype()));
  const bool narrow = s.narrow && g.defined() && p.dtype() == float32 && size_bytes(g.dtype()) == 2;
  if (g.defined() && (g.shape() != p.shape() || (g.dtype() != p.dtype() && !narrow) || g.is_global() != p.is_global()))
    fail_value("{}: parameter {} is {}, its gradient {}. They must be the same.", what, i, layout_text(p),
               layout_text(g));
  auto check_device = [&](const Tensor& t, const char* of) {
    if (p.is_local() && t.defined() && t.is_local() && !(t.device() == p.device()))
      fail_runtime("{}: parameter {} is on {}, its {} on {}. Move the module before creating its optimizer.", what, i,
                   p.device(), of, t.device());
  };
  check_device(g, "gradient");
  auto check_state = [&](const Tensor& t, const char* state) {
    if (t.defined() && (t.shape() != p.shape() || t.dtype() != state_dtype(p) || t.spec() != state_spec(rule, p)))
      fail_value(
          "{}: {} of parameter {} must be {} {} in the parameter's layout; found {}. Convert or redistribute it first.",
          what, state, i, name(state_dtype(p)), p.shape(), layout_text(t));
    check_device(t, state);
  };
  for (int k = 0; k < kMaxStates; ++k)
    if (const char* state = state_name(rule, k)) check_state(at_index(s.state, k), state);
  if (uses_master(rule, p)) check_state(s.master, "the master copy");
}

// A tensor in the given layout; collective where it must be redistributed.
Tensor in_layout(const Tensor& t, const GlobalSpec* spec) {
  return !spec || t.spec() == spec ? t : t.to_global(spec->placement, spec->nd_sbp);
}

// A state like its parameter, in the same memory order.
Tensor new_state(const Tensor& like, DType dtype) {
  Array a;
  if (like.array().defined() && like.array().is_placeholder()) {
    a = Array::placeholder(like.array().shape, like.array().strides, dtype, like.array().device);
  } else if (like.array().defined()) {
    const Array& v = like.array();
    a = v.is_dense() ? Array::empty_strided(v.shape, v.strides, dtype, v.device)
                     : Array::empty(v.shape, dtype, v.device);
  }
  if (like.is_local()) return Tensor::local(std::move(a));
  return Tensor::global(std::move(a), like.shape(), dtype, like.spec());
}

void changed(const Array& a) {
  if (a.defined()) ++a.storage->version;
}

kernels::UpdateNumbers numbers_of(const Rule& rule, int64_t step, bool first) {
  kernels::UpdateNumbers c;
  const double t = static_cast<double>(step);
  c.lr = rule.lr;
  c.eps = rule.eps;
  c.maximize = rule.maximize;
  c.weight_decay = rule.decoupled ? 0 : rule.weight_decay;
  const double c1 = rule.bias_correction ? 1 - std::pow(rule.beta1, t) : 1,
               c2 = rule.bias_correction ? 1 - std::pow(rule.beta2, t) : 1;
  switch (rule.kind) {
    case RuleKind::kSgd:
    case RuleKind::kLars:
      c.beta1 = rule.momentum;
      c.take = 1 - rule.dampening;
      c.nesterov = rule.nesterov;
      c.first = first;
      if (rule.lr_in_momentum && rule.momentum != 0) {
        c.take *= -rule.lr;
        c.lr = -1;
        c.first = false;  // the momentum begins at 0
      }
      break;
    case RuleKind::kAdam:
      c.lr = rule.lr / c1;
      c.shrink = rule.decoupled ? 1 - rule.lr * rule.weight_decay : 1;
      c.root_correction = 1 / std::sqrt(c2);
      c.beta1 = rule.beta1;
      c.beta2 = rule.beta2;
      break;
    case RuleKind::kLamb:
      c.late_decay = rule.decoupled ? rule.weight_decay : 0;
      c.correction = 1 / c1;
      // The kernel takes the root before it corrects.
      if (rule.eps_in_root) c.root_eps = rule.eps * c2, c.eps = 0;
      c.root_correction = 1 / std::sqrt(c2);
      c.beta1 = rule.beta1;
      c.beta2 = rule.beta2;
      break;
    case RuleKind::kAdagrad: c.lr = rule.lr / (1 + (t - 1) * rule.lr_decay); break;
    case RuleKind::kAdadelta: c.beta1 = rule.rho; break;
    case RuleKind::kRmsprop:
      if (rule.eps_in_root) std::swap(c.eps, c.root_eps);
      c.beta1 = rule.momentum;
      c.beta2 = rule.rho;
      break;
  }
  return c;
}

void count(const Rule& rule, Slot& s) {
  ++s.step;
  changed(s.param.array());
  for (int k = 0; k < kMaxStates; ++k)
    if (state_name(rule, k)) changed(at_index(s.state, k).array());
  if (uses_master(rule, s.param)) changed(s.master.array());
}

// Whether each rank that has a part of a parameter has all that its norms are of.
bool norms_stay(const GlobalSpec* spec) { return !spec || spec->nd_sbp.is_broadcast(); }

// Whether a step is kernels on what is there, on one device if they need norms, and the numbers that they are given.
bool only_kernels(const Rule& rule, std::span<const Slot> slots) {
  Device device;
  bool any = false;
  for (const Slot& s : slots) {
    if (!s.grad.defined()) continue;
    const GlobalSpec* spec = state_spec(rule, s.param);
    if (spec != s.param.spec() || s.grad.spec() != spec) return false;
    if (uses_master(rule, s.param) && !s.master.defined()) return false;
    if (const Array& part = s.param.array(); has_norms(rule.kind) && part.defined()) {
      if (part.device.is_host() || !norms_stay(spec) || (any && !(part.device == device))) return false;
      device = part.device;
      any = true;
    }
    for (int k = 0; k < kMaxStates; ++k)
      if (state_name(rule, k) && !at_index(s.state, k).defined()) return false;
  }
  return true;
}

// Whether the host need not know them.
bool norms_on_device(std::span<const kernels::UpdateTensor> parts, std::span<const GlobalSpec* const> specs) {
  return !parts.empty() && !parts[0].parameter.device.is_host() &&
      std::all_of(specs.begin(), specs.end(), norms_stay) && std::all_of(parts.begin(), parts.end(), [&](auto& part) {
        return part.parameter.device == parts[0].parameter.device;
      });
}

// Sets what depends on the norms of whole tensors. Collective for global parameters.
void apply_norms(const Rule& rule, std::span<kernels::UpdateTensor> parts, std::span<const size_t> slot_of,
                 std::span<const GlobalSpec* const> specs) {
  if (layout_free())
    fail_value("deterministic(layout_free=True): {} adds up norms of whole tensors in an order that depends on the "
               "layout. Use a rule without them, such as Adam.",
               rule.kind == RuleKind::kLamb ? "LAMB" : "LARS");
  // The decay that the norms leave out joins the direction after them.
  const double late_decay =
      rule.kind == RuleKind::kLamb && rule.ratio_before_decay && rule.decoupled ? rule.weight_decay : 0;
  if (late_decay != 0)
    for (auto& part : parts) part.numbers.late_decay = 0;
  const bool device = norms_on_device(parts, specs);
  std::vector<double> of_parts(device ? 0 : parts.size() * 2), sums(device ? 0 : specs.size() * 2);
  Array there;
  if (device) {
    there = Array::empty({static_cast<int64_t>(parts.size()), 2}, float64, parts[0].parameter.device);
    kernels::update_norms_into(kernel_of(rule.kind), parts, there);
  } else {
    kernels::update_norms(kernel_of(rule.kind), parts, of_parts);
  }
  if (late_decay != 0)
    for (auto& part : parts) part.numbers.late_decay = late_decay;
  if (device) {
    const kernels::RecordedUpdate* recorded = kernels::recorded_update();
    if (recorded && (recorded->only_numbers || !recorded->fits)) return;
    Array ratios = Array::empty({static_cast<int64_t>(parts.size())}, float64, there.device);
    kernels::trust_ratios(kernel_of(rule.kind), rule.trust_coefficient, rule.weight_decay, rule.eps, there, ratios);
    for (size_t k = 0; k < parts.size(); ++k) parts[k].ratio = ratios.view({}, {}, static_cast<int64_t>(k));
    return;
  }
  for (size_t k = 0; k < parts.size(); ++k)
    for (size_t j = 0; j < 2; ++j) sums[2 * slot_of[k] + j] = of_parts[2 * k + j];
  combine_over_ranks(specs, 2, Combine::kSum, false, sums);
  for (size_t k = 0; k < parts.size(); ++k) {
    const double p = std::sqrt(sums[2 * slot_of[k]]), d = std::sqrt(sums[2 * slot_of[k] + 1]);
    const bool both = p > 0 && d > 0;
    if (rule.kind == RuleKind::kLamb)
      parts[k].numbers.lr *= both ? p / d : 1;
    else
      parts[k].numbers.scale = both ? rule.trust_coefficient * p / (d + rule.weight_decay * p + rule.eps) : 1;
  }
}

}  // namespace

const char* state_name(const Rule& rule, int i) {
  auto pick = [&](const char* a, const char* b = nullptr, const char* c = nullptr) {
    const char* names[kMaxStates] = {a, b, c};
    return names[i];
  };
  switch (rule.kind) {
    case RuleKind::kSgd:
    case RuleKind::kLars: return pick(rule.momentum != 0 ? "momentum_buffer" : nullptr);
    case RuleKind::kAdam: return pick("exp_avg", "exp_avg_sq", rule.amsgrad ? "max_exp_avg_sq" : nullptr);
    case RuleKind::kAdagrad: return pick("sum");
    case RuleKind::kAdadelta: return pick("square_avg", "acc_delta");
    case RuleKind::kRmsprop:
      return pick("square_avg", rule.centered ? "grad_avg" : nullptr, rule.momentum > 0 ? "momentum_buffer" : nullptr);
    case RuleKind::kLamb: return pick("exp_avg", "exp_avg_sq");
  }
  return nullptr;
}

DType state_dtype(const Tensor& param) { return size_bytes(param.dtype()) == 2 ? float32 : param.dtype(); }

const GlobalSpec* state_spec(const Rule& rule, const Tensor& param) {
  const GlobalSpec* spec = param.spec();
  if (!spec || !spec->nd_sbp.has_partial() || (rule.kind == RuleKind::kSgd && !uses_master(rule, param))) return spec;
  NdSbp nd_sbp = spec->nd_sbp;
  for (int d = 0; d < nd_sbp.size(); ++d)
    if (nd_sbp[d].is_partial()) nd_sbp = nd_sbp.with(d, sbp::broadcast());
  return intern_spec(spec->placement, nd_sbp);
}

void check(const Rule& rule) {
  const char* what = rule_name(rule.kind);
  auto wanted = [&](bool ok, const char* text) {
    if (!ok) fail_value("{}: {}", what, text);
  };
  auto rate = [](double x) { return x >= 0 && x < 1; };
  wanted(rule.lr >= 0, "lr must not be negative.");
  wanted(rule.eps >= 0 && rule.weight_decay >= 0, "eps and weight_decay must not be negative.");
  switch (rule.kind) {
    case RuleKind::kSgd:
    case RuleKind::kLars:
      wanted(rule.momentum >= 0, "momentum must not be negative.");
      wanted(!rule.nesterov || (rule.momentum > 0 && rule.dampening == 0), "nesterov needs momentum and no dampening.");
      wanted(!rule.lr_in_momentum || !rule.nesterov, "lr_in_momentum excludes nesterov.");
      wanted(rule.trust_coefficient > 0, "trust_coefficient must be above 0.");
      break;
    case RuleKind::kAdam:
    case RuleKind::kLamb: wanted(rate(rule.beta1) && rate(rule.beta2), "betas must be in [0, 1)."); break;
    case RuleKind::kAdagrad:
      wanted(rule.lr_decay >= 0 && rule.initial_accumulator_value >= 0,
             "lr_decay and initial_accumulator_value must not be negative.");
      break;
    case RuleKind::kAdadelta: wanted(rule.rho >= 0 && rule.rho <= 1, "rho must be in [0, 1]."); break;
    case RuleKind::kRmsprop:
      wanted(rule.rho >= 0 && rule.momentum >= 0, "alpha and momentum must not be negative.");
      break;
  }
}

static void tell_updated(Observer& observer, const Rule& rule, std::span<const Slot> slots) {
  for (size_t i = 0; i < slots.size(); ++i) {
    const Slot& s = slots[i];
    if (!s.grad.defined()) continue;
    std::vector<std::pair<const char*, Tensor>> state;
    for (int k = 0; k < kMaxStates; ++k)
      if (const char* name = state_name(rule, k)) state.emplace_back(name, at_index(s.state, k));
    if (uses_master(rule, s.param)) state.emplace_back("master", s.master);
    observer.updated(rule_name(rule.kind), i, s.param, state);
  }
}

void update(const Rule& rule, std::span<Slot> slots) {
  if (capturing_tracer())
    fail_runtime("{}: step() inside a graph that is being captured. Pass the optimizer to the graph's add_optimizer(); "
                 "it then updates after each call.",
                 rule_name(rule.kind));
  tracing::Span span("optimizer step", "optimizer");
  check(rule);
  for (size_t i = 0; i < slots.size(); ++i) check_slot(rule, slots[i], i);
  kernels::RecordedUpdate* recorded = kernels::recorded_update();
  if (recorded && !(recorded->fits = only_kernels(rule, slots))) return;
  NoGradGuard guard;
  Observer* const watching = observer();
  if (watching) [[unlikely]]
    for (size_t i = 0; i < slots.size(); ++i) watching->update(rule_name(rule.kind), i, slots[i].param, slots[i].grad);
  ObserverPause untold;
  std::vector<kernels::UpdateTensor> parts;
  std::vector<size_t> slot_of;  // parts[k] is of slot slot_of[k], counted among those with a gradient
  std::vector<const GlobalSpec*> specs;
  std::vector<std::pair<Tensor, Tensor>> to_box_back;  // the value that was updated, its parameter
  std::vector<Tensor> gradients;                       // kept until the kernel has run
  // A part is more than a KiB: growing in steps would give memory back to the system and fetch it again in every call.
  parts.reserve(slots.size());
  slot_of.reserve(slots.size());
  specs.reserve(slots.size());
  gradients.reserve(slots.size());
  for (Slot& s : slots) {
    if (!s.grad.defined()) continue;
    const GlobalSpec* spec = state_spec(rule, s.param);
    Tensor grad = in_layout(s.grad, spec), value = s.param;
    if (spec != s.param.spec()) {
      value = in_layout(s.param.detach(), spec);
      to_box_back.emplace_back(value, s.param);
    }
    const bool mine = value.array().defined() && !value.array().is_placeholder();
    if (uses_master(rule, s.param) && !s.master.defined()) {
      s.master = new_state(value, float32);
      if (mine) kernels::copy(value.array(), s.master.impl()->array);
    }
    bool first = false;
    for (int k = 0; k < kMaxStates; ++k) {
      Tensor& state = at_index(s.state, k);
      if (!state_name(rule, k) || state.defined()) continue;
      state = new_state(value, state_dtype(s.param));
      if (mine)
        kernels::fill(state.impl()->array, rule.kind == RuleKind::kAdagrad ? rule.initial_accumulator_value : 0.0);
      first = true;
    }
    const int64_t step = s.step + 1;
    if (!recorded) count(rule, s);
    specs.push_back(spec);
    if (!mine) continue;
    kernels::UpdateTensor part;
    part.parameter = uses_master(rule, s.param) ? s.master.array() : value.array();
    part.gradient = grad.array();
    part.gradient_scale = s.gradient_scale;
    for (int k = 0; k < kMaxStates; ++k) {
      const Tensor& state = at_index(s.state, k);
      if (state_name(rule, k)) part.state[k] = state.array();
    }
    if (uses_master(rule, s.param)) part.rounded = value.array();
    part.numbers = numbers_of(rule, step, first);
    parts.push_back(std::move(part));
    slot_of.push_back(specs.size() - 1);
    gradients.push_back(std::move(grad));
  }
  if (has_norms(rule.kind)) apply_norms(rule, parts, slot_of, specs);
  kernels::update(kernel_of(rule.kind), parts);
  for (auto& [value, param] : to_box_back) {
    Tensor back = in_layout(value, param.spec());
    if (!param.array().defined() || param.array().is_placeholder()) continue;
    kernels::copy(back.array(), param.impl()->array);
  }
  if (watching) [[unlikely]]
    tell_updated(*watching, rule, slots);
}

void count_update(const Rule& rule, std::span<Slot> slots) {
  for (Slot& s : slots)
    if (s.grad.defined()) count(rule, s);
}

}  // namespace holon::optim
