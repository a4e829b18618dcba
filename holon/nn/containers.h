// Modules that hold modules: in order (Sequential, ModuleList) or by name (ModuleDict). As of all modules, copies are
// handles of one: what is added to or replaced in one is in all.
#pragma once

#include <concepts>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "holon/base/error.h"
#include "holon/nn/module.h"
#include "holon/nn/shared.h"

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
    push_back(std::to_string(size()), std::move(module));
  }
  template <std::derived_from<Module> M>
  void push_back(const std::string& name, M module) {
    auto item = std::make_shared<Of<M>>(std::move(module));
    register_element(name, item->module);
    items_->push_back(std::move(item));
  }
  // Puts a module, of whatever type, in place of the one at an index. Errors: there is none.
  template <std::derived_from<Module> M>
  void replace(size_t i, M module) {
    check(i);
    const std::string name = named_children()[i].first;
    auto item = std::make_shared<Of<M>>(std::move(module));
    replace_element(name, item->module);
    (*items_)[i] = std::move(item);
  }
  // The number of modules.
  size_t size() const { return items_->size(); }
  // The module at a place, as the tree has it: without its own type.
  Module operator[](size_t i) const {
    check(i);
    return named_children()[i].second;
  }
  Tensor forward(Tensor x) const {
    for (auto& item : *items_) x = item->call(x);
    return x;
  }

 private:
  struct Item {
    virtual ~Item() = default;
    virtual Tensor call(const Tensor& x) = 0;
  };
  template <class M>
  struct Of final : Item {
    explicit Of(M m) : module(std::move(m)) {}
    Tensor call(const Tensor& x) override { return module(x); }
    M module;
  };
  void check(size_t i) const {
    if (i >= size()) fail_value("Sequential: index {} is out of range, it holds {}.", i, size());
  }
  Shared<std::vector<std::shared_ptr<Item>>> items_;
};

// A list of modules of one type, named "0", "1", ...
template <std::derived_from<Module> M>
class ModuleList : public Layer<ModuleList<M>> {
 public:
  ModuleList() = default;
  explicit ModuleList(const std::vector<M>& modules) {
    for (auto& m : modules) push_back(m);
  }
  // Adds a module at the end.
  void push_back(M module) {
    M& element = list_->emplace_back(std::move(module));
    try {
      this->register_element(std::to_string(size() - 1), element);
    } catch (...) {
      list_->pop_back();
      throw;
    }
  }
  // Errors: there is no module of this index.
  void replace(size_t i, const M& module) {
    at(i);
    this->replace_module(std::to_string(i), module);
  }
  // The modules in order. Errors of at() and back(): there is no such module.
  size_t size() const { return list_->size(); }
  bool empty() const { return list_->empty(); }
  const M& operator[](size_t i) const { return (*list_)[i]; }
  // Errors: there is no module of this number.
  const M& at(size_t i) const {
    if (i >= size()) fail_value("ModuleList: index {} is out of range, it holds {}.", i, size());
    return (*list_)[i];
  }
  // The last one. Errors: the list is empty.
  const M& back() const { return at(size() - 1); }
  auto begin() const { return std::as_const(*list_).begin(); }
  auto end() const { return std::as_const(*list_).end(); }

 private:
  Shared<std::deque<M>> list_;  // a deque: elements stay where they are
};

// Modules of one type by name, in the order in which they were added.
template <std::derived_from<Module> M>
class ModuleDict : public Layer<ModuleDict<M>> {
 public:
  ModuleDict() = default;
  ModuleDict(std::initializer_list<std::pair<std::string, M>> modules) {
    for (auto& [name, m] : modules) insert(name, m);
  }
  // Errors: a name that is taken, empty, or has a dot.
  void insert(const std::string& name, M module) {
    M& element = items_->emplace_back(name, std::move(module)).second;
    try {
      this->register_element(name, element);
    } catch (...) {
      items_->pop_back();
      throw;
    }
  }
  // Errors: no module of that name.
  void replace(const std::string& name, const M& module) {
    (*this)[name];
    this->replace_module(name, module);
  }
  // The number of modules, and whether there is one of that name.
  size_t size() const { return items_->size(); }
  bool contains(const std::string& name) const {
    for (auto& item : *items_)
      if (item.first == name) return true;
    return false;
  }
  // Errors: no module of that name.
  const M& operator[](const std::string& name) const {
    for (auto& item : *items_)
      if (item.first == name) return item.second;
    fail_value("ModuleDict: there is no '{}'.", name);
  }
  auto begin() const { return std::as_const(*items_).begin(); }
  auto end() const { return std::as_const(*items_).end(); }

 private:
  Shared<std::deque<std::pair<std::string, M>>> items_;
};

}  // namespace holon::nn
