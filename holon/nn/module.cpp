#include "holon/nn/module.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/ops/cast.h"
#include "holon/ops/shape.h"
#include "holon/tensor/parameter.h"

namespace holon::nn {

struct Module::State {
  struct Buffer {
    std::string name;
    Tensor tensor;
    bool persistent;
  };
  // Deques: references to their entries stay valid.
  std::deque<std::pair<std::string, Tensor>> parameters;
  std::deque<Buffer> buffers;
  std::vector<std::pair<std::string, Module>> children;
  std::map<int, PreHook> pre_hooks;
  std::map<int, Hook> hooks;
  int n_hooks = 0;
  bool training = true;

  // Calls f(state, prefix) for this module and all below it, parents first.
  template <class F>
  void visit(const std::string& prefix, F&& f) {
    f(*this, prefix);
    for (auto& [name, child] : children) child.state_->visit(prefix + name + ".", f);
  }
};

namespace {

void append(StateDict& list, const std::string& name, const Tensor& t, bool all_names) {
  if (all_names || std::none_of(list.begin(), list.end(), [&](auto& e) { return e.second.is_same(t); }))
    list.emplace_back(name, t);
}

Tensor find_tensor(const StateDict& list, const std::string& path, const char* kind) {
  auto it = std::find_if(list.begin(), list.end(), [&](auto& e) { return e.first == path; });
  if (it == list.end()) fail_value("the module has no {} '{}'. named_{}s() lists its own.", kind, path, kind);
  return it->second;
}

// Whether text fits a pattern of `*` and `?`.
bool fits(const char* pattern, const char* text) {
  if (!*pattern) return !*text;
  if (*pattern == '*') return fits(pattern + 1, text) || (*text && fits(pattern, text + 1));
  return *text && (*pattern == '?' || *pattern == *text) && fits(pattern + 1, text + 1);
}

// The first few, as a model may have thousands.
std::string joined(const std::vector<std::string>& names, const char* between = ", ") {
  constexpr size_t kMost = 5;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, names.size()); ++i) text += (i ? between : "") + names[i];
  return names.size() > kMost ? fmt::format("{} and {} more", text, names.size() - kMost) : text;
}

// What is before all missing names in those that are there instead, as a wrapper's "module."; empty: nothing does.
std::string prefix_of(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected) {
  if (missing.empty()) return "";
  for (auto& name : unexpected) {
    if (name.size() <= missing[0].size() || !name.ends_with("." + missing[0])) continue;
    const std::string prefix = name.substr(0, name.size() - missing[0].size());
    const std::unordered_set<std::string> there(unexpected.begin(), unexpected.end());
    if (std::all_of(missing.begin(), missing.end(), [&](auto& m) { return there.contains(prefix + m); })) return prefix;
  }
  return "";
}

// Puts the value of `from` into the tensor `to`, whose handles stay valid.
void replace_value(Tensor& to, const Tensor& from) {
  TensorImpl& impl = *to.impl();
  uint32_t version = impl.array.defined() ? impl.array.storage->version : 0;
  impl.array = from.array();
  impl.shape = from.shape();
  impl.dtype = from.dtype();
  impl.device = from.impl()->device;
  impl.spec = from.spec();
  // What backward kept of the old value must not pass for current.
  if (impl.array.defined()) impl.array.storage->version = std::max(impl.array.storage->version, version) + 1;
}

}  // namespace

Module::Module() : state_(std::make_shared<State>()) {}

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos)
    fail_value("register: '{}' cannot be a name within a module: a name is not empty and has no dot.", name);
  auto taken = [&](auto& list) {
    return std::any_of(list.begin(), list.end(), [&](auto& e) { return e.first == name; });
  };
  bool buffer = std::any_of(state_->buffers.begin(), state_->buffers.end(), [&](auto& e) { return e.name == name; });
  if (taken(state_->parameters) || buffer || taken(state_->children))
    fail_value("register: the module already has a member '{}'. Choose another name.", name);
}

Tensor& Module::register_parameter(const std::string& name, Tensor value) {
  check_name(name);
  if (!value.defined())
    fail_value("register_parameter: '{}' is an undefined tensor. Leave it out if the module has none.", name);
  if (!value.is_leaf()) value = value.detach();
  value.set_requires_grad();
  mark_parameter(value);
  return state_->parameters.emplace_back(name, std::move(value)).second;
}

Tensor& Module::register_buffer(const std::string& name, Tensor value, bool persistent) {
  check_name(name);
  if (!value.defined())
    fail_value("register_buffer: '{}' is an undefined tensor. Leave it out if the module has none.", name);
  return state_->buffers.emplace_back(State::Buffer{name, std::move(value), persistent}).tensor;
}

void Module::add_child(const std::string& name, const Module& module) {
  check_name(name);
  bool cycle = false;
  module.state_->visit("", [&](State& s, const std::string&) { cycle |= &s == state_.get(); });
  if (cycle) fail_value("register_module: '{}' contains this module itself; modules must form a tree.", name);
  state_->children.emplace_back(name, module);
}

StateDict Module::named_parameters(bool all_names) const {
  StateDict list;
  state_->visit("", [&](State& s, const std::string& prefix) {
    for (auto& [name, t] : s.parameters) append(list, prefix + name, t, all_names);
  });
  return list;
}

StateDict Module::named_buffers(bool all_names) const {
  StateDict list;
  state_->visit("", [&](State& s, const std::string& prefix) {
    for (auto& b : s.buffers) append(list, prefix + b.name, b.tensor, all_names);
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

std::vector<std::pair<std::string, Module>> Module::named_children() const { return state_->children; }

Tensor Module::get_parameter(const std::string& path) const {
  return find_tensor(named_parameters(true), path, "parameter");
}
Tensor Module::get_buffer(const std::string& path) const { return find_tensor(named_buffers(true), path, "buffer"); }

Module Module::get_submodule(const std::string& path) const {
  if (path.empty()) return *this;
  for (auto& [name, module] : named_modules())
    if (name == path) return module;
  fail_value("the module has no submodule '{}'. named_modules() lists its own.", path);
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

void Module::apply(const std::function<void(Module&)>& f) {
  for (auto& [name, child] : state_->children) child.apply(f);
  f(*this);
}

void Module::requires_grad_(bool on) {
  for (Tensor p : parameters()) p.set_requires_grad(on);
}

void Module::convert(const std::function<Tensor(const std::string&, const Tensor&)>& f) {
  NoGradGuard guard;
  StateDict all = named_parameters();
  for (auto& [name, t] : named_buffers()) append(all, name, t, false);
  for (auto& [name, t] : all) {
    Tensor member = t, value = f(name, member);
    if (value.is_same(member)) continue;
    member.set_grad({});
    replace_value(member, value);
  }
}

void Module::to(DType dtype) {
  if (!is_floating(dtype)) fail_type("Module::to: parameters must have a floating point dtype, not {}.", name(dtype));
  convert([&](const std::string&, const Tensor& t) {
    return is_floating(t.dtype()) && t.dtype() != dtype ? t.to(dtype) : t;
  });
}

void Module::to(Device device) {
  convert([&](const std::string&, const Tensor& t) { return to_device(t, device); });
}

void Module::to_global(const Placement& placement, const LayoutByName& layout) {
  convert([&](const std::string& name, const Tensor& t) {
    NdSbp sbp = layout(name, t);
    return sbp ? t.to_global(placement, sbp) : t;
  });
}

void Module::to_global(const Placement& placement, const NdSbp& sbp) {
  to_global(placement, [&](const std::string&, const Tensor&) { return sbp; });
}

void Module::zero_grad() const {
  for (Tensor p : parameters()) p.set_grad({});
}

StateDict Module::state_dict() const {
  StateDict all = named_parameters(true);
  state_->visit("", [&](State& s, const std::string& prefix) {
    for (auto& b : s.buffers)
      if (b.persistent) all.emplace_back(prefix + b.name, b.tensor);
  });
  return all;
}

LoadResult Module::load_state_dict(const StateDict& state, bool strict) {
  StateDict own = state_dict();
  auto find = [](const StateDict& list, const std::string& name) {
    return std::find_if(list.begin(), list.end(), [&](auto& e) { return e.first == name; });
  };
  LoadResult result;
  for (auto& [name, t] : own)
    if (find(state, name) == state.end()) result.missing.push_back(name);
  std::vector<std::string> misfits, errors;
  auto error = [&](std::string text) { misfits.push_back(std::move(text)); };
  for (auto& [name, value] : state) {
    auto it = find(own, name);
    if (it == own.end()) {
      result.unexpected.push_back(name);
      continue;
    }
    const Tensor& t = it->second;
    if (!value.defined()) {
      error(fmt::format("{} is undefined", name));
    } else if (value.shape() != t.shape()) {
      error(fmt::format("{} is {}, the module's is {}", name, value.shape(), t.shape()));
    } else if (value.is_global() != t.is_global()) {
      error(fmt::format("{} is {}, the module's is {}: convert it first by {}", name,
                        value.is_global() ? "global" : "local", t.is_global() ? "global" : "local",
                        value.is_global() ? "to_local()" : "to_global(placement, sbp)"));
    }
  }
  if (strict && !result.missing.empty()) errors.push_back("missing: " + joined(result.missing));
  if (strict && !result.unexpected.empty()) errors.push_back("unexpected: " + joined(result.unexpected));
  if (std::string prefix = prefix_of(result.missing, result.unexpected); strict && !prefix.empty())
    errors.push_back(fmt::format("the names in the state dict begin with '{}': remove that prefix first", prefix));
  if (!misfits.empty()) errors.push_back(joined(misfits, "; "));
  if (!errors.empty())
    fail_value("load_state_dict: {}. (strict = false allows names to differ.)", joined(errors, "; "));
  NoGradGuard guard;
  // In the module's order, which is the same on every rank.
  for (auto& [name, t] : own) {
    auto it = find(state, name);
    if (it == state.end() || it->second.is_same(t)) continue;
    Tensor value = it->second.to(t.dtype());
    if (t.is_global() && value.spec() != t.spec()) value = value.to_global(t.placement(), t.nd_sbp());
    copy_(t, value);
  }
  return result;
}

HookHandle Module::register_forward_pre_hook(PreHook hook) {
  int number = state_->n_hooks++;
  state_->pre_hooks[number] = std::move(hook);
  return HookHandle([state = std::weak_ptr(state_), number] {
    if (auto s = state.lock()) s->pre_hooks.erase(number);
  });
}

HookHandle Module::register_forward_hook(Hook hook) {
  int number = state_->n_hooks++;
  state_->hooks[number] = std::move(hook);
  return HookHandle([state = std::weak_ptr(state_), number] {
    if (auto s = state.lock()) s->hooks.erase(number);
  });
}

bool Module::has_hooks() const { return !state_->pre_hooks.empty() || !state_->hooks.empty(); }

// Over copies: a hook may take itself away.
Tensor Module::run_pre_hooks(Tensor input) const {
  for (auto& [number, hook] : std::map(state_->pre_hooks))
    if (Tensor changed = hook(input); changed.defined()) input = changed;
  return input;
}

Tensor Module::run_hooks(const Tensor& input, Tensor output) const {
  for (auto& [number, hook] : std::map(state_->hooks))
    if (Tensor changed = hook(input, output); changed.defined()) output = changed;
  return output;
}

LayoutByName layout_by_patterns(std::vector<std::pair<std::string, NdSbp>> patterns) {
  return [patterns = std::move(patterns)](const std::string& name, const Tensor&) {
    for (auto& [pattern, sbp] : patterns)
      if (fits(pattern.c_str(), name.c_str())) return sbp;
    fail_value("layout_by_patterns: no pattern matches '{}'. Add one, or \"*\" for all others.", name);
  };
}

}  // namespace holon::nn
