// Module: a named tree of parameters, buffers and modules. A module is a cheap handle: copies share everything.
//
// Derive from it, register what belongs to it, and give it an operator():
//   struct Net : nn::Module {
//     nn::Linear up{4, 16}, down{16, 2};
//     Net() { register_module("up", up); register_module("down", down); }
//     Tensor operator()(const Tensor& x) const { return down(relu(up(x))); }
//   };
// A parameter stays one tensor for life: to_global() and load_state_dict() change what it holds, so that handles to it, in
// modules and optimizers, stay valid.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holon/tensor/tensor.h"

namespace holon::nn {

// Tensors by name, in the order in which they were registered: "block.0.weight".
using StateDict = std::vector<std::pair<std::string, Tensor>>;

class Module {
 public:
  Module();
  virtual ~Module() = default;
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;

  // Each returns what it registered. Errors: a name that is empty, has a dot or is taken; an undefined tensor.
  // The parameter becomes a leaf that requires grad.
  Tensor& register_parameter(const std::string& name, Tensor value);
  Tensor& register_buffer(const std::string& name, Tensor value);
  template <class M>
  M&& register_module(const std::string& name, M&& module) {
    add_child(name, module);
    return std::forward<M>(module);
  }

  // Of this module and all below it. A tensor that is registered twice is listed once, under its first name.
  std::vector<Tensor> parameters() const;
  StateDict named_parameters() const;
  StateDict named_buffers() const;
  std::vector<std::pair<std::string, Module>> named_modules() const;  // without this one
  // The number of elements of all parameters.
  int64_t parameter_count() const;

  // Sets the mode of this module and all below it, which Dropout asks for.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;

  // Gives every parameter and buffer a layout, in place; gradients are dropped. layout is asked by name; an empty NdSbp leaves
  // that tensor as it is. A local tensor is this rank's part, as for Tensor::to_global. Collective.
  void to_global(const Placement& placement, const std::function<NdSbp(const std::string& name, const Tensor& tensor)>& layout);
  void to_global(const Placement& placement, const NdSbp& sbp);

  // Drops the gradients of all parameters.
  void zero_grad() const;

  // Parameters, then buffers; the tensors share memory with the module's.
  StateDict state_dict() const;
  // Copies values into the parameters and buffers of the same names, boxed to their layouts. Errors, before any is changed: a
  // shape that differs; a global value for a local tensor or the other way; with strict, a name missing on either side.
  // Collective where tensors are global.
  void load_state_dict(const StateDict& state, bool strict = true);

 private:
  struct State;
  void check_name(const std::string& name) const;
  void add_child(const std::string& name, const Module& module);
  std::shared_ptr<State> state_;
};

}  // namespace holon::nn
