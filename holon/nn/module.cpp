#include "holon/nn/module.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/ops.h"

namespace holon::nn {

struct Module::State {
  // Deques: references to their entries stay valid.
  std::deque<std::pair<std::string, Tensor>> parameters, buffers;
  std::vector<std::pair<std::string, Module>> children;
  bool training = true;

  // Calls f(state, prefix) for this module and all below it, parents first.
  template <class F>
  void visit(const std::string& prefix, F&& f) {
    f(*this, prefix);
    for (auto& [name, child] : children) child.state_->visit(prefix + name + ".", f);
  }
};

namespace {

void append_new(StateDict& list, const std::string& name, const Tensor& t) {
  if (std::none_of(list.begin(), list.end(), [&](auto& e) { return e.second == t; })) list.emplace_back(name, t);
}

// Puts the value of `from` into the tensor `to`, whose handles stay valid.
void replace_value(Tensor& to, const Tensor& from) {
  TensorImpl& impl = *to.impl();
  uint32_t version = impl.array.defined() ? impl.array.storage->version : 0;
  impl.array = from.array();
  impl.shape = from.shape();
  impl.device = from.impl()->device;
  impl.spec = from.spec();
  // What backward kept of the old value must not pass for current.
  if (impl.array.defined()) impl.array.storage->version = std::max(impl.array.storage->version, version) + 1;
}

}  // namespace

Module::Module() : state_(std::make_shared<State>()) {}

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos)
    fail_value("register: '{}' cannot be a name within a module: it must not be empty and have no dot.", name);
  auto taken = [&](auto& list) { return std::any_of(list.begin(), list.end(), [&](auto& e) { return e.first == name; }); };
  if (taken(state_->parameters) || taken(state_->buffers) || taken(state_->children))
    fail_value("register: the module has a member '{}' already. Choose another name.", name);
}

Tensor& Module::register_parameter(const std::string& name, Tensor value) {
  check_name(name);
  if (!value.defined()) fail_value("register_parameter: '{}' is an undefined tensor. Leave it out if the module has none.", name);
  if (!value.is_leaf()) value = value.detach();
  value.set_requires_grad();
  return state_->parameters.emplace_back(name, std::move(value)).second;
}

Tensor& Module::register_buffer(const std::string& name, Tensor value) {
  check_name(name);
  if (!value.defined()) fail_value("register_buffer: '{}' is an undefined tensor. Leave it out if the module has none.", name);
  return state_->buffers.emplace_back(name, std::move(value)).second;
}

void Module::add_child(const std::string& name, const Module& module) {
  check_name(name);
  bool cycle = false;
  module.state_->visit("", [&](State& s, const std::string&) { cycle |= &s == state_.get(); });
  if (cycle) fail_value("register_module: '{}' holds this module itself; modules form a tree.", name);
  state_->children.emplace_back(name, module);
}

StateDict Module::named_parameters() const {
  StateDict list;
  state_->visit("", [&](State& s, const std::string& prefix) {
    for (auto& [name, t] : s.parameters) append_new(list, prefix + name, t);
  });
  return list;
}

StateDict Module::named_buffers() const {
  StateDict list;
  state_->visit("", [&](State& s, const std::string& prefix) {
    for (auto& [name, t] : s.buffers) append_new(list, prefix + name, t);
  });
  return list;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> list;
  for (auto& [name, t] : named_parameters()) list.push_back(t);
  return list;
}

std::vector<std::pair<std::string, Module>> Module::named_modules() const {
  std::vector<std::pair<std::string, Module>> list;
  state_->visit("", [&](State& s, const std::string& prefix) {
    for (auto& [name, child] : s.children) list.emplace_back(prefix + name, child);
  });
  return list;
}

int64_t Module::parameter_count() const {
  int64_t n = 0;
  for (auto& [name, t] : named_parameters()) n += t.numel();
  return n;
}

void Module::train(bool on) {
  state_->visit("", [&](State& s, const std::string&) { s.training = on; });
}

bool Module::is_training() const { return state_->training; }

void Module::to_global(const Placement& placement, const std::function<NdSbp(const std::string&, const Tensor&)>& layout) {
  NoGradGuard guard;
  for (auto& [name, t] : state_dict()) {
    NdSbp sbp = layout(name, t);
    if (!sbp) continue;
    Tensor member = t;
    Tensor value = member.to_global(placement, sbp);
    if (value == member) continue;
    member.set_grad({});
    replace_value(member, value);
  }
}

void Module::to_global(const Placement& placement, const NdSbp& sbp) {
  to_global(placement, [&](const std::string&, const Tensor&) { return sbp; });
}

void Module::zero_grad() const {
  for (Tensor p : parameters()) p.set_grad({});
}

StateDict Module::state_dict() const {
  StateDict all = named_parameters();
  for (auto& [name, t] : named_buffers()) append_new(all, name, t);
  return all;
}

void Module::load_state_dict(const StateDict& state, bool strict) {
  StateDict own = state_dict();
  auto find = [](const StateDict& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](auto& e) { return e.first == name; });
  };
  for (auto& [name, value] : state) {
    auto it = find(own, name);
    if (it == own.end()) {
      if (strict) fail_value("load_state_dict: the module has no '{}'. Rename it, or load with strict = false.", name);
      continue;
    }
    const Tensor& t = it->second;
    if (!value.defined()) fail_value("load_state_dict: the value of '{}' is undefined.", name);
    if (value.shape() != t.shape()) fail_value("load_state_dict: '{}' has shape {} in the module and {} in the state.", name, t.shape(), value.shape());
    if (value.is_global() != t.is_global())
      fail_runtime("load_state_dict: '{}' is {} in the module and {} in the state. Convert one of them by to_global() or to_local().", name,
                   t.is_global() ? "global" : "local", value.is_global() ? "global" : "local");
  }
  if (strict)
    for (auto& [name, t] : own)
      if (find(state, name) == state.end()) fail_value("load_state_dict: the state has no '{}'. Add it, or load with strict = false.", name);
  NoGradGuard guard;
  // In the module's order, which is the same on every rank.
  for (auto& [name, t] : own) {
    auto it = find(state, name);
    if (it == state.end() || it->second == t) continue;
    Tensor value = it->second.to(t.dtype());
    if (t.is_global() && value.spec() != t.spec()) value = value.to_global(t.placement(), t.nd_sbp());
    copy_(t, value);
  }
}

}  // namespace holon::nn
