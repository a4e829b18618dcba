// Modules that hold modules: in order (Sequential, ModuleList) or by name (ModuleDict).
#pragma once

#include <concepts>
#include <functional>

#include "holon/base/error.h"
#include "holon/nn/module.h"

namespace holon::nn {

// Modules one after the other, named "0", "1", ... or as they are added. Each is called with a tensor and returns one.
// Modules that draw their parameters are in braces, Sequential{Linear(2, 3), Linear(3, 1)}: they are then made in
// this order, as in Python. The arguments of a call in parentheses are made in the compiler's order, GCC's last one
// first.
class Sequential : public Layer<Sequential> {
 public:
  Sequential() = default;
  template <class First, class... M>
  requires(sizeof...(M) > 0 || !std::is_same_v<std::decay_t<First>, Sequential>) explicit Sequential(First first,
                                                                                                     M... more) {
    push_back(std::move(first));
    (push_back(std::move(more)), ...);
  }
  // Adds a module at the end, under the next number or a name. Errors: a name that is taken, empty, or has a dot.
  template <std::derived_from<Module> M>
  void push_back(M module) {
    push_back(std::to_string(calls_.size()), std::move(module));
  }
  template <std::derived_from<Module> M>
  void push_back(const std::string& name, M module) {
    register_module(name, module);
    calls_.push_back(std::move(module));
  }
  // The number of modules.
  size_t size() const { return calls_.size(); }
  // The module at a place, as the tree has it: without its own type.
  Module operator[](size_t i) const {
    if (i >= size()) fail_value("Sequential: index {} is out of range, it holds {}.", i, size());
    return named_children()[i].second;
  }
  Tensor forward(Tensor x) const {
    for (auto& call : calls_) x = call(x);
    return x;
  }

 private:
  std::vector<std::function<Tensor(const Tensor&)>> calls_;
};

// A list of modules of one type, named "0", "1", ...
template <std::derived_from<Module> M>
class ModuleList : public Module {
 public:
  ModuleList() = default;
  explicit ModuleList(const std::vector<M>& modules) {
    for (auto& m : modules) push_back(m);
  }
  // Adds a module at the end.
  void push_back(M module) {
    register_module(std::to_string(list_.size()), module);
    list_.push_back(std::move(module));
  }
  // The modules in order. Errors of at() and back(): there is no such module.
  size_t size() const { return list_.size(); }
  bool empty() const { return list_.empty(); }
  const M& operator[](size_t i) const { return list_[i]; }
  // Errors: there is no module of this number.
  const M& at(size_t i) const {
    if (i >= size()) fail_value("ModuleList: index {} is out of range, it holds {}.", i, size());
    return list_[i];
  }
  // The last one. Errors: the list is empty.
  const M& back() const { return at(size() - 1); }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

 private:
  std::vector<M> list_;
};

// Modules of one type by name, in the order in which they were added.
template <std::derived_from<Module> M>
class ModuleDict : public Module {
 public:
  ModuleDict() = default;
  ModuleDict(std::initializer_list<std::pair<std::string, M>> modules) {
    for (auto& [name, m] : modules) insert(name, m);
  }
  // Errors: a name that is taken, empty, or has a dot.
  void insert(const std::string& name, M module) {
    register_module(name, module);
    items_.emplace_back(name, std::move(module));
  }
  // The number of modules, and whether there is one of that name.
  size_t size() const { return items_.size(); }
  bool contains(const std::string& name) const {
    for (auto& item : items_)
      if (item.first == name) return true;
    return false;
  }
  // Errors: no module of that name.
  const M& operator[](const std::string& name) const {
    for (auto& item : items_)
      if (item.first == name) return item.second;
    fail_value("ModuleDict: there is no '{}'.", name);
  }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<std::pair<std::string, M>> items_;
};

}  // namespace holon::nn
