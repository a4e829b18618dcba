// Value: what save() takes and load() returns: tensors, numbers, text, and lists and dicts of such values.
//
//   holon::save({{"model", model.state_dict()}, {"optimizer", adam.state_dict()}, {"epoch", 3}}, "run.safetensors");
//   auto run = holon::load("run.safetensors");
//   model.load_state_dict(run["model"].state_dict());
//   int64_t epoch = run["epoch"].integer();
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "holon/nn/module.h"
#include "holon/optim/optimizer.h"
#include "holon/tensor/tensor.h"

namespace holon::nn {
struct GraphState;
}

namespace holon::checkpoint {

class Value {
 public:
  struct Entry;
  using List = std::vector<Value>;
  using Dict = std::vector<Entry>;  // in the order of insertion; keys are null, bools, numbers or text
  // A list whose length means something: Python's tuple.
  struct Tuple {
    List items;
  };

  Value();  // null
  Value(std::nullptr_t);
  Value(bool b);
  template <std::integral T>
  requires(!std::same_as<T, bool>) Value(T n) : Value() { set(static_cast<int64_t>(n)); }
  Value(double x);
  Value(const char* text);
  Value(std::string text);
  Value(std::string_view text);
  Value(Tensor tensor);
  Value(List list);
  Value(Tuple tuple);
  Value(Dict dict);
  Value(std::initializer_list<std::pair<std::string, Value>> dict);
  // A module's; an optimizer's, as a dict of "tensors" and "numbers"; a graph's, of "modules", "optimizers" and
  // "steps".
  Value(const nn::StateDict& state);
  Value(const optim::StateDict& state);
  Value(const nn::GraphState& state);
  Value(const Value&);
  Value(Value&&) noexcept;
  Value& operator=(const Value&);
  Value& operator=(Value&&) noexcept;
  ~Value();

  // The value if it is of this type, else nullptr.
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&value_);
  }
  // Whether it is null, as in JSON.
  bool is_null() const;
  // The value as this type; a number may be an integer, and a list a tuple. Errors (TypeError), naming what is there:
  // something else.
  const Tensor& tensor() const;
  bool boolean() const;
  int64_t integer() const;
  double number() const;
  const std::string& text() const;
  const List& list() const;
  const Dict& dict() const;
  size_t size() const;  // of a list, tuple or dict

  // Whether a dict has the key. Errors: it is not a dict.
  bool contains(std::string_view key) const;
  // Errors also (ValueError): a dict has no such key, which names those that it has (IndexError: no such place in a
  // list).
  const Value& operator[](std::string_view key) const;
  const Value& operator[](const char* key) const { return (*this)[std::string_view(key)]; }
  const Value& operator[](size_t index) const;

  // A dict of tensors for Module::load_state_dict(); names of dicts within are joined by dots.
  nn::StateDict state_dict() const;
  // For Optimizer::load_state_dict().
  optim::StateDict optimizer_state() const;
  // For Graph::load_state_dict().
  nn::GraphState graph_state() const;

  // "dict", "Tensor": for messages.
  const char* kind() const;

 private:
  void set(int64_t n);

  std::variant<std::monostate, bool, int64_t, double, std::string, Tensor, List, Tuple, Dict> value_;
};

struct Value::Entry {
  Value key, value;
};

}  // namespace holon::checkpoint
