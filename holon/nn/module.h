// Module: a named tree of parameters, buffers and modules. A module is a handle, as a tensor is: copies are the same
// module, and agree on its layers, parameters, mode and hooks whichever of them is changed.
//
// Derive from Layer, register what belongs to it, and give it a forward():
//   struct Net : nn::Layer<Net> {
//     nn::Linear up{4, 16}, down{16, 2};
//     Net() { register_module("up", up); register_module("down", down); }
//     Tensor forward(const Tensor& x) const { return down(relu(up(x))); }
//   };
// net(x) is net.forward(x) with the hooks around it. (A class that is called with anything else has an operator() of
// its own instead.)
//
// A member that is registered belongs to the tree. An assignment to it is one to the module, as in Python:
//   Net net, same = net;
//   net.up = nn::Linear(4, 16);     // registers it as "up", in place of the old one, and same.up is the new one, too
// The optimizers that were made before still have the old parameters. A variable that is not a member of the object
// which registers it stays an ordinary one: assigning to it changes no module. What a class has besides, such as
// numbers or a std::vector, is copied with the handle: what changes after construction belongs into a buffer or an
// nn::Shared.
//
// A parameter that is not replaced stays one tensor: to(), to_global() and load_state_dict() change what it holds, so
// that handles to it, in modules and optimizers, stay valid. A module that was moved from holds nothing: its use is an
// Error.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "holon/nn/member.h"
#include "holon/tensor/tensor.h"
#include "holon/tensor/tracer.h"

namespace holon::nn {

// Tensors by name, in the order in which they were registered: "block.0.weight".
using StateDict = std::vector<std::pair<std::string, Tensor>>;

// The names that load_state_dict did not find on either side.
struct LoadResult {
  std::vector<std::string> missing, unexpected;
};

// A layout by name: which nd_sbp a tensor gets; an empty one leaves it as it is.
using LayoutByName = std::function<NdSbp(const std::string& name, const Tensor& tensor)>;

// Takes a hook away again, by remove().
class HookHandle {
 public:
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  // Takes the hook away.
  void remove() const { remove_(); }

 private:
  std::function<void()> remove_;
};

namespace detail {
struct ModuleAccess;

// How a variable of a registered module's type is assigned to; nullptr where it cannot be.
struct Assignment {
  void (*assign)(Module& member, const Module& value) = nullptr;
  bool (*accepts)(const Module& value) = nullptr;
};
}  // namespace detail

class Module : private detail::Member {
 public:
  // Before forward: of its first argument; what it returns, if defined, takes its place.
  using PreHook = std::function<Tensor(const Tensor& input)>;
  // After forward: of its first argument and its result; what it returns, if defined, takes the result's place.
  using Hook = std::function<Tensor(const Tensor& input, const Tensor& output)>;

  Module();
  virtual ~Module();
  Module(const Module& o);
  Module(Module&& o) noexcept;
  // Of a registered member: replace_module().
  Module& operator=(const Module& o);
  Module& operator=(Module&& o);  // NOLINT(performance-noexcept-move-constructor): has Errors

  // Each returns what it registered, to be a member of the class. Errors: a name that is empty, has a dot or is taken;
  // an undefined tensor; a module that contains this one. The parameter becomes a leaf that requires grad. A buffer
  // that is not persistent is not a part of state_dict().
  Parameter& register_parameter(const std::string& name, Tensor value) {
    return add_parameter(name, std::move(value), {});
  }
  Buffer& register_buffer(const std::string& name, Tensor value, bool persistent = true) {
    return add_buffer(name, std::move(value), persistent, {});
  }
  template <class M>
  M&& register_module(const std::string& name, M&& module) {
    return add_module(name, std::forward<M>(module), {});
  }

  // Registers another module, parameter or buffer in place of the one at a path ("up", "blocks.0.weight"), and assigns
  // it to the members that hold it, in all handles. Parameters as in register_parameter(). Errors, before anything is
  // changed: nothing has this name; a module of another type than its member's; a module that contains the one where it
  // would be; a tensor that is undefined or the result of an op.
  void replace_module(const std::string& path, const Module& module);
  void replace_parameter(const std::string& path, const Tensor& value);
  void replace_buffer(const std::string& path, const Tensor& value);
  // Takes the module at a path out of the tree. Errors: nothing has this name; a member holds it, and would call it.
  void remove_module(const std::string& path);

  // Of this module and all below it. A tensor that is registered several times is listed once, under its first name,
  // unless all_names.
  std::vector<Tensor> parameters() const;
  StateDict named_parameters(bool all_names = false) const;
  StateDict named_buffers(bool all_names = false) const;
  // The same for all handles of a module.
  const void* identity() const { return state_.get(); }
  // All modules below this one; those directly in it.
  std::vector<std::pair<std::string, Module>> named_modules() const;
  std::vector<std::pair<std::string, Module>> named_children() const;
  // By a path such as "block.0.weight". Errors: nothing has this name.
  Tensor get_parameter(const std::string& path) const;
  Tensor get_buffer(const std::string& path) const;
  Module get_submodule(const std::string& path) const;
  // The number of elements of all parameters.
  int64_t parameter_count() const;

  // Sets the mode of this module and all below it, which Dropout and BatchNorm ask for.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;

  // Calls f with every module of the tree, this one last.
  void apply(const std::function<void(Module&)>& f);
  void requires_grad_(bool on = true);

  // Gives every parameter and buffer another dtype (floating ones only) or device, in place; gradients are dropped.
  void to(DType dtype);
  void to(Device device);
  // Gives every parameter and buffer a layout, in place; gradients are dropped. A local tensor is this rank's part, as
  // for Tensor::to_global. Collective.
  void to_global(const Placement& placement, const LayoutByName& layout);
  void to_global(const Placement& placement, const NdSbp& sbp);

  // Drops the gradients of all parameters.
  void zero_grad() const;

  // Parameters, then buffers, under all of their names; the tensors share memory with the module's.
  StateDict state_dict() const;
  // Copies values into the parameters and buffers of the same names, redistributed to their layouts. Errors, before any
  // is changed, that list all that does not fit: a shape that differs; a global value for a local tensor or the other
  // way; with strict, a name missing on either side. Collective where tensors are global.
  LoadResult load_state_dict(const StateDict& state, bool strict = true);

  // Run in the order of registration by Layer's operator().
  HookHandle register_forward_pre_hook(PreHook hook);
  HookHandle register_forward_hook(Hook hook);

 protected:
  // What a call of a Layer does before and after forward(). Errors: the module was moved from.
  bool has_hooks() const;
  Tensor run_pre_hooks(Tensor input) const;
  Tensor run_hooks(const Tensor& input, Tensor output) const;

  // What register_parameter() and its like do, for the members that the registrar knows.
  Parameter& add_parameter(const std::string& name, Tensor value, const detail::Registrar& registrar);
  Buffer& add_buffer(const std::string& name, Tensor value, bool persistent, const detail::Registrar& registrar);
  template <class M>
  M&& add_module(const std::string& name, M&& module, const detail::Registrar& registrar) {
    using Type = std::remove_cvref_t<M>;
    if constexpr (std::is_const_v<std::remove_reference_t<M>>)
      add_child(name, module, nullptr, false, registrar, {});
    else
      add_child(name, module, &module, !std::is_lvalue_reference_v<M>, registrar, assignment<Type>());
    return std::forward<M>(module);
  }
  // Registers an element of a list that all handles share: it is replaced where it is. Its address stays.
  template <class M>
  void register_element(const std::string& name, M& element) {
    add_element(name, element, assignment<M>());
  }
  // Registers another element, of any type, in place of the one of the name.
  template <class M>
  void replace_element(const std::string& name, M& element) {
    exchange_element(name, element, assignment<M>());
  }

 private:
  friend class ModuleTensor;
  friend class Graph;
  friend struct detail::ModuleAccess;
  struct State;
  template <class M>
  static constexpr detail::Assignment assignment() {
    if constexpr (!std::is_copy_assignable_v<M>)
      return {};
    else
      return {[](Module& to, const Module& from) { static_cast<M&>(to) = static_cast<const M&>(from); },
              [](const Module& value) {
                if constexpr (std::is_same_v<M, Module>)
                  return true;
                else
                  return dynamic_cast<const M*>(&value) != nullptr;
              }};
  }
  static void assign_tensor(detail::Registration& registration, const Tensor& value, ModuleTensor* member);
  State& state() const;
  void check_name(const std::string& name) const;
  std::shared_ptr<detail::Registration> make_registration(const std::string& name, detail::MemberKind kind,
                                                          const detail::Registrar& registrar);
  // member: the variable, if it can be assigned to; temporary: what is made of it becomes the member.
  void add_child(const std::string& name, const Module& module, Module* member, bool temporary,
                 const detail::Registrar& registrar, const detail::Assignment& assignment);
  void add_element(const std::string& name, Module& element, const detail::Assignment& assignment);
  void exchange_element(const std::string& name, Module& element, const detail::Assignment& assignment);
  void hold_element(const std::string& name, Module& element, const detail::Assignment& assignment);
  void assign(const Module& o);
  void set_state(std::shared_ptr<State> state);
  void track();
  void untrack();
  void convert(const std::function<Tensor(const std::string&, const Tensor&)>& f);
  std::shared_ptr<State> state_;
};

// A module's call while a graph is captured.
struct TracedCall {
  TracedCall(const void* module, const Tensor& x)
      : failing(std::uncaught_exceptions()), input(tracer()->enter(module, x)) {}
  ~TracedCall() { tracer()->leave(std::uncaught_exceptions() > failing); }
  TracedCall(const TracedCall&) = delete;
  TracedCall& operator=(const TracedCall&) = delete;
  int failing;
  Tensor input;
};

// A module that is called: Self has a forward(), whose first argument and result hooks may see and replace.
template <class Self>
class Layer : public Module {
 public:
  // Module's, for the members of Self.
  Parameter& register_parameter(const std::string& name, Tensor value) {
    return this->add_parameter(name, std::move(value), registrar());
  }
  Buffer& register_buffer(const std::string& name, Tensor value, bool persistent = true) {
    return this->add_buffer(name, std::move(value), persistent, registrar());
  }
  template <class M>
  M&& register_module(const std::string& name, M&& module) {
    return this->add_module(name, std::forward<M>(module), registrar());
  }

  template <class... Args>
  auto operator()(const Tensor& x, Args&&... args) const {
    if (!tracer()) [[likely]]
      return run_forward(x, std::forward<Args>(args)...);
    TracedCall traced(identity(), x);
    return run_forward(traced.input, std::forward<Args>(args)...);
  }

 private:
  detail::Registrar registrar() { return {static_cast<Self*>(this), sizeof(Self), &typeid(Self)}; }
  template <class... Args>
  auto run_forward(const Tensor& x, Args&&... args) const {
    const Self& self = static_cast<const Self&>(*this);
    using Result = std::decay_t<decltype(self.forward(x, std::forward<Args>(args)...))>;
    if (!has_hooks()) return static_cast<Result>(self.forward(x, std::forward<Args>(args)...));
    Tensor input = run_pre_hooks(x);
    Result result = self.forward(input, std::forward<Args>(args)...);
    if constexpr (std::is_same_v<Result, Tensor>)
      return run_hooks(input, std::move(result));
    else
      return result;
  }
};

// A layout from patterns of names, of which the first that fits counts: {{"*.weight", sbp::split(0)}, {"*",
// sbp::broadcast()}}.
// `*` represents any text, `?` for one character. Errors, when asked: no pattern fits.
LayoutByName layout_by_patterns(std::vector<std::pair<std::string, NdSbp>> patterns);

}  // namespace holon::nn
