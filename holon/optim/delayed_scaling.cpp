#include "holon/optim/delayed_scaling.h"

#include <algorithm>
#include <cmath>

#include "holon/array/device.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/global/spec.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/float8.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/tensor/tracer.h"

namespace holon::optim {

namespace {

constexpr const char* kScale = ".scale";
constexpr const char* kHistory = ".amax_history";

// This rank's part of a float32 tensor.
std::vector<float> values_of(const Tensor& t) {
  NoGradGuard no_grad;
  Tensor here = t.is_global() ? to_local(t) : t;
  if (!here.device().is_host()) here = to_device(here, Device{});
  const Array a = kernels::contiguous(here.array());
  return {a.data<float>(), a.data<float>() + a.numel()};
}

// A tensor of such values, where `like` is.
Tensor tensor_of(const std::vector<float>& values, const Dims& shape, const Tensor& like) {
  if (!like.array().defined()) return Tensor::global(Array(), shape, float32, like.spec());
  Array a = Array::empty(shape, float32);
  std::copy(values.begin(), values.end(), a.data<float>());
  Tensor here = Tensor::local(a);
  if (!like.array().device.is_host()) here = to_device(here, like.array().device);
  return like.is_global() ? Tensor::global(here.array(), shape, float32, like.spec()) : here;
}

bool on_same_ranks(const Tensor& a, const Tensor& b) {
  return a.is_global() && b.is_global() ? a.placement() == b.placement() : a.is_local() && b.is_local();
}

// The same along all axes of the placement. With split(0) a tensor has a row for each rank: axes split its first axis
// one after the other.
NdSbp along_all(const Placement& p, Sbp s) { return NdSbp(std::vector<Sbp>(to_size(p.hierarchy().size()), s)); }

}  // namespace

DelayedScaling::DelayedScaling(Named parameters, const Options& o) : options_(o) {
  if (o.margin < 0 || o.margin > 64) fail_value("DelayedScaling: margin is {}; it must be from 0 to 64.", o.margin);
  if (o.amax_history_len < 1)
    fail_value("DelayedScaling: amax_history_len is {}; it must be 1 or more steps.", o.amax_history_len);
  for (auto& [name, parameter] : parameters) {
    if (!parameter.defined() || !is_floating(parameter.dtype())) continue;
    auto s = std::make_unique<State>();
    s->name = name;
    s->parameter = parameter;
    for (size_t r = 0; r < kFloat8Roles; ++r) {
      s->scale[r] = 1;
      s->history[r].assign(to_size(o.amax_history_len), 0);
    }
    for (auto& other : states_)
      if (other->name == name) fail_value("DelayedScaling: two parameters are called '{}'.", name);
    if (!of_.emplace(parameter.impl(), s.get()).second)
      fail_value("DelayedScaling: the parameter '{}' is there under another name, too. Give each once.", name);
    states_.push_back(std::move(s));
  }
}

void DelayedScaling::make_tensors(State& s) {
  TracerPause untraced;
  NoGradGuard no_grad;
  const Tensor& p = s.parameter;
  for (size_t r = 0; r < kFloat8Roles; ++r) {
    if (p.is_global()) {
      const Placement& on = p.placement();
      s.tensors.scale[r] =
          full(Dims{}, s.scale[r], {.placement = on, .sbp = along_all(on, sbp::broadcast()), .dtype = DType::kFloat32});
      s.tensors.amax[r] =
          zeros({on.size()}, {.placement = on, .sbp = along_all(on, sbp::split(0)), .dtype = DType::kFloat32});
    } else {
      s.tensors.scale[r] = full(Dims{}, s.scale[r], {.dtype = DType::kFloat32, .device = p.device()});
      s.tensors.amax[r] = zeros({1}, {.dtype = DType::kFloat32, .device = p.device()});
    }
  }
}

// Of all roles, one after the other.
std::vector<float> DelayedScaling::history_of(const State& s) {
  std::vector<float> all;
  for (auto& h : s.history) all.insert(all.end(), h.begin(), h.end());
  return all;
}

void DelayedScaling::restore(State& s, const std::vector<float>& scale, const std::vector<float>& history) const {
  const auto length = options_.amax_history_len;
  for (size_t r = 0; r < kFloat8Roles; ++r) {
    s.scale[r] = scale[r];
    const auto begin = history.begin() + static_cast<int64_t>(r) * length;
    s.history[r].assign(begin, begin + length);
  }
}

// The parameter is on other ranks than before, of which some know nothing of its steps.
void DelayedScaling::move(State& s) const {
  TracerPause untraced;
  const auto n = static_cast<int64_t>(kFloat8Roles);
  const Tensor before = s.tensors.scale[0];
  std::vector<float> scale(s.scale, s.scale + kFloat8Roles), history = history_of(s);
  if (before.is_global() && s.parameter.is_global()) {
    scale = values_of(tensor_of(scale, {n}, before).full());
    history = values_of(tensor_of(history, {n, options_.amax_history_len}, before).full());
  } else {
    // Each rank had its own.
    std::fill(scale.begin(), scale.end(), 1.0f);
    std::fill(history.begin(), history.end(), 0.0f);
  }
  restore(s, scale, history);
  make_tensors(s);
}

Float8Scales* DelayedScaling::scales_of(const Tensor& parameter, DType dtype) {
  auto it = of_.find(parameter.impl());
  if (it == of_.end()) return nullptr;
  State& s = *it->second;
  s.dtype = dtype;
  const Tensor& scale = s.tensors.scale[0];
  if (!scale.defined())
    make_tensors(s);
  else if (!on_same_ranks(scale, parameter))
    move(s);
  return &s.tensors;
}

// Of states on one placement: for each state and role, over all ranks.
std::vector<float> DelayedScaling::largest_of(const std::vector<State*>& states) {
  std::vector<Tensor> columns;
  for (const State* s : states) columns.insert(columns.end(), s->tensors.amax.begin(), s->tensors.amax.end());
  Tensor rows = stack(columns, 1);
  if (rows.is_global()) {
    rows = rows.to_global(rows.placement(), along_all(rows.placement(), sbp::broadcast()));
    if (!rows.array().defined()) return {};
  }
  const std::vector<float> all = values_of(rows);
  std::vector<float> largest(columns.size(), 0);
  for (size_t i = 0; i < all.size(); ++i) {
    float& found = largest[i % columns.size()];
    found = all[i] <= found ? found : all[i];
  }
  return largest;
}

// The tensors' values for the next step: those that ops and graphs have are kept.
void DelayedScaling::begin_step(State& s, size_t role) {
  Array scale = s.tensors.scale[role].array(), amax = s.tensors.amax[role].array();
  if (!scale.defined()) return;
  kernels::fill(scale, Scalar(static_cast<double>(s.scale[role])));
  kernels::fill(amax, Scalar(0.0));
}

void DelayedScaling::end_step(State& s, size_t role, float amax) const {
  if (!(amax > 0 && std::isfinite(amax))) return;
  auto& history = s.history[role];
  std::copy_backward(history.begin(), history.end() - 1, history.end());
  history[0] = amax;
  if (options_.amax_compute_algo == Options::AmaxCompute::kMax)
    amax = *std::max_element(history.begin(), history.end());
  const DType dtype = static_cast<Float8Role>(role) == Float8Role::kGradient ? float8_e5m2 : s.dtype;
  s.scale[role] = std::max(std::ldexp(kernels::float8_scale(amax, dtype), -options_.margin), std::ldexp(1.0f, -126));
}

void DelayedScaling::update() {
  require_real_rank("DelayedScaling.update");
  if (tracer())
    fail_runtime("DelayedScaling.update: a graph is being captured. Call it after the graph's step, or give the recipe "
                 "to config.enable_amp(), whose graph does so.");
  NoGradGuard no_grad;
  std::vector<std::vector<State*>> groups;
  for (auto& s : states_) {
    if (!s->tensors.scale[0].defined()) continue;
    auto same = [&](const std::vector<State*>& g) {
      const Tensor &a = g[0]->tensors.scale[0], &b = s->tensors.scale[0];
      return a.spec() == b.spec() && (a.spec() || a.device() == b.device());
    };
    auto it = std::find_if(groups.begin(), groups.end(), same);
    if (it == groups.end()) it = groups.insert(groups.end(), std::vector<State*>());
    it->push_back(s.get());
  }
  for (auto& states : groups) {
    const std::vector<float> amaxes = largest_of(states);
    if (amaxes.empty()) continue;  // ranks outside
    for (size_t i = 0; i < amaxes.size(); ++i) {
      State& s = *states[i / kFloat8Roles];
      const size_t role = i % kFloat8Roles;
      end_step(s, role, amaxes[i]);
      begin_step(s, role);
    }
  }
}

DelayedScaling::Named DelayedScaling::state_dict() const {
  Named out;
  const auto n = static_cast<int64_t>(kFloat8Roles);
  for (auto& s : states_) {
    const Tensor& like = s->tensors.scale[0];
    if (!like.defined()) continue;
    out.emplace_back(s->name + kScale, tensor_of({s->scale, s->scale + kFloat8Roles}, {n}, like));
    out.emplace_back(s->name + kHistory, tensor_of(history_of(*s), {n, options_.amax_history_len}, like));
  }
  return out;
}

void DelayedScaling::load_state_dict(const Named& state) {
  struct Entry {
    State* of;
    const Tensor *scale = nullptr, *history = nullptr;
  };
  std::vector<Entry> entries;
  const auto n = static_cast<int64_t>(kFloat8Roles);
  for (auto& [name, t] : state) {
    const bool is_scale = name.ends_with(kScale);
    if (!is_scale && !name.ends_with(kHistory))
      fail_value("DelayedScaling.load_state_dict: '{}' is neither a scale nor an amax_history.", name);
    const std::string of = name.substr(0, name.size() - std::string(is_scale ? kScale : kHistory).size());
    auto it = std::find_if(states_.begin(), states_.end(), [&](auto& s) { return s->name == of; });
    if (it == states_.end())
      fail_value("DelayedScaling.load_state_dict: '{}' is of a parameter that this recipe does not have.", name);
    const Dims wanted = is_scale ? Dims{n} : Dims{n, options_.amax_history_len};
    if (!t.defined() || t.shape() != wanted || t.dtype() != float32)
      fail_value("DelayedScaling.load_state_dict: '{}' is {}; it must be float32 {}, by amax_history_len {}.", name,
                 t.defined() ? fmt::format("{} {}", holon::name(t.dtype()), t.shape()) : "undefined", wanted,
                 options_.amax_history_len);
    auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.of == it->get(); });
    if (entry == entries.end()) entry = entries.insert(entries.end(), {it->get()});
    (is_scale ? entry->scale : entry->history) = &t;
  }
  for (auto& e : entries)
    if (!e.scale || !e.history)
      fail_value("DelayedScaling.load_state_dict: '{}' has its {} only.", e.of->name,
                 e.scale ? "scale" : "amax_history");
  for (auto& e : entries) {
    const std::vector<float> scale = values_of(e.scale->full()), history = values_of(e.history->full());
    State& s = *e.of;
    restore(s, scale, history);
    if (!s.tensors.scale[0].defined()) {
      make_tensors(s);
      continue;
    }
    for (size_t r = 0; r < kFloat8Roles; ++r) begin_step(s, r);
  }
}

float DelayedScaling::scale(const std::string& parameter, Float8Role role) const {
  for (auto& s : states_)
    if (s->name == parameter) return s->scale[static_cast<size_t>(role)];
  fail_value("DelayedScaling.scale: there is no parameter '{}'.", parameter);
}

}  // namespace holon::optim
