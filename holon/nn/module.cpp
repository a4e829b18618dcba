#include "holon/nn/module.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/nn/module_access.h"
#include "holon/nn/registration.h"
#include "holon/ops/cast.h"
#include "holon/ops/shape.h"
#include "holon/tensor/parameter.h"
#include "holon/tensor/replace_value.h"

namespace holon::nn {

using detail::MemberKind;
using detail::Registration;

struct Module::State : detail::Registrations {
  struct NamedBuffer {
    std::string name;
    Buffer tensor;
    bool persistent;
  };
  // Deques: references to their entries stay valid.
  std::deque<std::pair<std::string, Parameter>> parameters;
  std::deque<NamedBuffer> buffers;
  std::vector<std::pair<std::string, Module>> children;
  std::map<int, PreHook> pre_hooks;
  std::map<int, Hook> hooks;
  int n_hooks = 0;
  bool training = true;
  uint64_t changes = 0;  // of what is registered, hooks included

  Module* child(const std::string& name) {
    for (auto& [own, module] : children)
      if (own == name) return &module;
    return nullptr;
  }
  ModuleTensor* tensor(MemberKind kind, const std::string& name) {
    if (kind == MemberKind::kParameter) {
      for (auto& [own, t] : parameters)
        if (own == name) return &t;
    } else {
      for (auto& b : buffers)
        if (b.name == name) return &b.tensor;
    }
    return nullptr;
  }
  // That of the name; nullptr: no variable can be its member.
  Registration* registration(MemberKind kind, const std::string& name) {
    for (auto& r : all)
      if (r->kind == kind && r->name == name) return r.get();
    return nullptr;
  }
  bool contains(const State* other) {
    bool found = false;
    visit("", [&](State& s, const std::string&) { found |= &s == other; });
    return found;
  }

  // Both also assign to the members, except to the one that is being assigned to.
  void replace_child(const std::string& name, const Module& module, const Member* assigned);
  void replace_tensor(MemberKind kind, const std::string& name, const Tensor& value);

  // Calls f(state, prefix) for this module and all below it, parents first.
  template <class F>
  void visit(const std::string& prefix, F&& f) {
    f(*this, prefix);
    for (auto& [name, child] : children) child.state().visit(prefix + name + ".", f);
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

}  // namespace

// Handles, members and moves

Module::Module() : state_(std::make_shared<State>()) {}
Module::Module(const Module& o) : Member(o), state_(o.state_) { track(); }
Module::Module(Module&& o) noexcept : Member(o) {
  o.untrack();
  state_ = std::move(o.state_);
  track();
}
Module::~Module() { untrack(); }

Module& Module::operator=(const Module& o) {
  if (this != &o) assign(o);
  return *this;
}
Module& Module::operator=(Module&& o) {
  if (this == &o) return *this;
  assign(o);
  o.set_state(nullptr);
  return *this;
}

Module::State& Module::state() const {
  if (!state_) [[unlikely]]
    fail_runtime("this module was moved from (std::move) and holds nothing. Use the variable that it was moved to, or "
                 "copy it instead: a copy is the same module.");
  return *state_;
}

void Module::track() {
  if (!state_ || !state_->tracked.load(std::memory_order_acquire)) return;
  std::lock_guard lock(detail::members_mutex());
  state_->handles.push_back(this);
}

void Module::untrack() {
  if (!state_ || !state_->tracked.load(std::memory_order_acquire)) return;
  std::lock_guard lock(detail::members_mutex());
  std::erase(state_->handles, this);
}

void Module::set_state(std::shared_ptr<State> state) {
  if (state == state_) return;
  untrack();
  state_.swap(state);  // the old one goes at the end
  track();
}

void Module::assign(const Module& o) {
  if (Registration* r = registered()) {
    State& owner = static_cast<State&>(*r->owner);
    // Equal: another handle's member follows, or the same is assigned again.
    if (owner.child(r->name)->state_ != o.state_) {
      if (!r->certain)
        fail_runtime("an assignment to a variable that is registered as the module '{}': whether it is a member of its "
                     "module cannot be told, as that derives from another module class than nn::Layer of itself, or is "
                     "a graph. Use replace_module(\"{}\", module).",
                     r->name, r->name);
      owner.replace_child(r->name, o, this);
    }
    set_state(o.state_);
    return;
  }
  set_state(o.state_);
  join_as(o);
}

void Module::State::replace_child(const std::string& name, const Module& module, const Member* assigned) {
  Registration* r = registration(MemberKind::kModule, name);
  if (r && !(r->accepts && r->accepts(module)))
    fail_type(
        "replace_module: '{}' is held by a member that this module cannot be assigned to. Pass one of the member's "
        "type; a Module that was taken out of a tree has lost its own.",
        name);
  if (module.state().contains(this))
    fail_value("replace_module: the new '{}' contains the module that it would be in; modules must form a tree.", name);
  *child(name) = module;
  ++changes;
  if (!r) return;
  for (Member* m : r->others(assigned)) r->assign(static_cast<Module&>(*m), module);
}

void Module::State::replace_tensor(MemberKind kind, const std::string& name, const Tensor& given) {
  const char* what = kind == MemberKind::kParameter ? "parameter" : "buffer";
  if (!given.defined()) fail_value("replace_{}: the new '{}' is an undefined tensor.", what, name);
  Tensor value = given;
  if (kind == MemberKind::kParameter) {
    if (!value.is_leaf())
      fail_value("replace_parameter: the new '{}' is the result of an op. Register its value by detach(), or write it "
                 "into the parameter: NoGradGuard guard; copy_(parameter, value).",
                 name);
    // Integers, as of quantised weights, have no gradients.
    if (is_floating(value.dtype())) value.set_requires_grad();
    mark_parameter(value);
  }
  static_cast<Tensor&>(*tensor(kind, name)) = value;
  ++changes;
  Registration* r = registration(kind, name);
  if (!r) return;
  for (Member* m : r->others(nullptr)) static_cast<Tensor&>(static_cast<ModuleTensor&>(*m)) = value;
}

void Module::assign_tensor(Registration& r, const Tensor& value, ModuleTensor* member) {
  State& owner = static_cast<State&>(*r.owner);
  if (owner.tensor(r.kind, r.name)->is_same(value)) {
    static_cast<Tensor&>(*member) = value;
    return;
  }
  if (!r.certain) {
    const char* what = r.kind == MemberKind::kParameter ? "parameter" : "buffer";
    fail_runtime("an assignment to a variable that is registered as the {} '{}': whether it is a member of its module "
                 "cannot be told, as that derives from another module class than nn::Layer of itself. Use "
                 "replace_{}(\"{}\", tensor).",
                 what, r.name, what, r.name);
  }
  owner.replace_tensor(r.kind, r.name, value);
}

namespace {
// "blocks.0.weight" -> {"blocks.0", "weight"}
std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::pair(std::string(), path)
                                  : std::pair(path.substr(0, dot), path.substr(dot + 1));
}
}  // namespace

void Module::replace_module(const std::string& path, const Module& module) {
  auto [parent, name] = split_path(path);
  Module in = get_submodule(parent);
  if (!in.state().child(name))
    fail_value("replace_module: the module has no submodule '{}'. named_modules() lists its own.", path);
  in.state().replace_child(name, module, nullptr);
}

void Module::remove_module(const std::string& path) {
  auto [parent, name] = split_path(path);
  State& in = get_submodule(parent).state();
  if (!in.child(name))
    fail_value("remove_module: the module has no submodule '{}'. named_modules() lists its own.", path);
  if (in.registration(MemberKind::kModule, name))
    fail_value("remove_module: '{}' is held by a member of its module, which calls it. Replace it by an nn::Identity.",
               path);
  std::erase_if(in.children, [&own = name](auto& entry) { return entry.first == own; });
  ++in.changes;
}

void Module::replace_parameter(const std::string& path, const Tensor& value) {
  auto [parent, name] = split_path(path);
  Module in = get_submodule(parent);
  if (!in.state().tensor(MemberKind::kParameter, name))
    fail_value("replace_parameter: the module has no parameter '{}'. named_parameters() lists its own.", path);
  in.state().replace_tensor(MemberKind::kParameter, name, value);
}

void Module::replace_buffer(const std::string& path, const Tensor& value) {
  auto [parent, name] = split_path(path);
  Module in = get_submodule(parent);
  if (!in.state().tensor(MemberKind::kBuffer, name))
    fail_value("replace_buffer: the module has no buffer '{}'. named_buffers() lists its own.", path);
  in.state().replace_tensor(MemberKind::kBuffer, name, value);
}

// Registration

void Module::check_name(const std::string& name) const {
  State& own = state();
  if (name.empty() || name.find('.') != std::string::npos)
    fail_value("register: '{}' cannot be a name within a module: a name is not empty and has no dot.", name);
  if (own.child(name) || own.tensor(MemberKind::kParameter, name) || own.tensor(MemberKind::kBuffer, name))
    fail_value("register: the module already has a member '{}'. Choose another name.", name);
}

// Of what has just been registered.
std::shared_ptr<Registration> Module::make_registration(const std::string& name, detail::MemberKind kind,
                                                        const detail::Registrar& registrar) {
  auto r = std::make_shared<Registration>();
  r->owner = state_.get();
  r->kind = kind;
  r->name = name;
  r->handle = this;
  r->type = &typeid(*this);
  r->registrar = registrar;
  r->exact = registrar.type ? *r->type == *registrar.type : *r->type == typeid(Module);
  std::lock_guard lock(detail::members_mutex());
  state_->tracked.store(true, std::memory_order_release);
  if (!state_->has(this)) state_->handles.push_back(this);
  state_->all.push_back(r);
  return r;
}

Parameter& Module::add_parameter(const std::string& name, Tensor value, const detail::Registrar& registrar) {
  check_name(name);
  if (!value.defined())
    fail_value("register_parameter: '{}' is an undefined tensor. Leave it out if the module has none.", name);
  if (!value.is_leaf()) value = value.detach();
  value.set_requires_grad();
  mark_parameter(value);
  ++state_->changes;
  Parameter& entry = state_->parameters.emplace_back(name, std::move(value)).second;
  entry.registration_ = make_registration(name, MemberKind::kParameter, registrar);
  return entry;
}

Buffer& Module::add_buffer(const std::string& name, Tensor value, bool persistent, const detail::Registrar& registrar) {
  check_name(name);
  if (!value.defined())
    fail_value("register_buffer: '{}' is an undefined tensor. Leave it out if the module has none.", name);
  ++state_->changes;
  Buffer& entry = state_->buffers.emplace_back(State::NamedBuffer{name, std::move(value), persistent}).tensor;
  entry.registration_ = make_registration(name, MemberKind::kBuffer, registrar);
  return entry;
}

void Module::add_child(const std::string& name, const Module& module, Module* member, bool temporary,
                       const detail::Registrar& registrar, const detail::Assignment& assignment) {
  check_name(name);
  if (module.state().contains(state_.get()))
    fail_value("register_module: '{}' contains this module itself; modules must form a tree.", name);
  state_->children.emplace_back(name, module);
  ++state_->changes;
  // What is a member of one module already stays that.
  if (!member || member->registered()) return;
  auto r = make_registration(name, MemberKind::kModule, registrar);
  r->assign = assignment.assign;
  r->accepts = assignment.accepts;
  if (member->registration_) member->leave();
  if (temporary) {
    member->registration_ = r;  // for what is made of it
    return;
  }
  std::lock_guard lock(detail::members_mutex());
  r->place(*member, r);
}

void Module::hold_element(const std::string& name, Module& element, const detail::Assignment& assignment) {
  auto r = make_registration(name, MemberKind::kModule, {});
  r->assign = assignment.assign;
  r->accepts = assignment.accepts;
  r->shared = true;
  if (element.registration_) element.leave();
  std::lock_guard lock(detail::members_mutex());
  element.registration_ = r;
  r->members.push_back(&element);
}

void Module::add_element(const std::string& name, Module& element, const detail::Assignment& assignment) {
  add_child(name, element, nullptr, false, {}, {});
  hold_element(name, element, assignment);
}

void Module::exchange_element(const std::string& name, Module& element, const detail::Assignment& assignment) {
  if (element.state().contains(state_.get()))
    fail_value("replace: the new '{}' contains the module that it would be in; modules must form a tree.", name);
  {
    std::lock_guard lock(detail::members_mutex());
    std::erase_if(state_->all, [&](auto& r) {
      if (r->kind != MemberKind::kModule || r->name != name) return false;
      r->owner = nullptr;
      return true;
    });
  }
  *state().child(name) = element;
  ++state_->changes;
  hold_element(name, element, assignment);
}

StateDict Module::named_parameters(bool all_names) const {
  StateDict list;
  state().visit("", [&](State& s, const std::string& prefix) {
    for (auto& [name, t] : s.parameters) append(list, prefix + name, t, all_names);
  });
  return list;
}

StateDict Module::named_buffers(bool all_names) const {
  StateDict list;
  state().visit("", [&](State& s, const std::string& prefix) {
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
  state().visit("", [&](State& s, const std::string& prefix) {
    for (auto& [name, child] : s.children) list.emplace_back(prefix + name, child);
  });
  return list;
}

std::vector<std::pair<std::string, Module>> Module::named_children() const { return state().children; }

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
  state().visit("", [&](State& s, const std::string&) { s.training = on; });
}

bool Module::is_training() const { return state().training; }

void Module::apply(const std::function<void(Module&)>& f) {
  for (auto& [name, child] : named_children()) child.apply(f);
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
  state().visit("", [&](State& s, const std::string& prefix) {
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
  int number = state().n_hooks++;
  state_->pre_hooks[number] = std::move(hook);
  ++state_->changes;
  return HookHandle([state = std::weak_ptr(state_), number] {
    if (auto s = state.lock()) s->changes += s->pre_hooks.erase(number);
  });
}

HookHandle Module::register_forward_hook(Hook hook) {
  int number = state().n_hooks++;
  state_->hooks[number] = std::move(hook);
  ++state_->changes;
  return HookHandle([state = std::weak_ptr(state_), number] {
    if (auto s = state.lock()) s->changes += s->hooks.erase(number);
  });
}

bool Module::has_hooks() const {
  const State& own = state();
  return !own.pre_hooks.empty() || !own.hooks.empty();
}

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

uint64_t detail::ModuleAccess::changes(const Module& module) { return module.state().changes; }
void detail::ModuleAccess::set_training(const Module& module, bool on) { module.state().training = on; }
StateDict detail::ModuleAccess::parameters(const Module& module) {
  auto& own = module.state().parameters;
  return {own.begin(), own.end()};
}
bool detail::ModuleAccess::has_parameter_of(const Module& module, const std::string& name,
                                            const std::type_info& layer) {
  const Registration* r = module.state().registration(MemberKind::kParameter, name);
  return r && r->registrar.type && *r->registrar.type == layer;
}
std::vector<detail::ModuleAccess::NamedBuffer> detail::ModuleAccess::buffers(const Module& module) {
  std::vector<NamedBuffer> list;
  for (auto& b : module.state().buffers) list.push_back({b.name, b.tensor, b.persistent});
  return list;
}

LayoutByName layout_by_patterns(std::vector<std::pair<std::string, NdSbp>> patterns) {
  return [patterns = std::move(patterns)](const std::string& name, const Tensor&) {
    for (auto& [pattern, sbp] : patterns)
      if (fits(pattern.c_str(), name.c_str())) return sbp;
    fail_value("layout_by_patterns: no pattern matches '{}'. Add one, or \"*\" for all others.", name);
  };
}

}  // namespace holon::nn
