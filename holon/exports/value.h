// Values that pass between Python and functions that a library exports, and their conversion to and from C++'s types.
// Tensors and modules pass as what they are, without copies.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include "holon/data/batches.h"
#include "holon/global/spec.h"
#include "holon/nn/module.h"
#include "holon/tensor/tensor.h"

namespace holon::exports {

// A module object that Python holds.
struct ModuleObject {
  virtual ~ModuleObject() = default;
  // The module itself.
  virtual nn::Module& module() = 0;
};

struct Value;
// Python's tuple.
struct Tuple {
  std::vector<Value> items;
};
struct Value {
  using Variant = std::variant<std::monostate, bool, int64_t, double, std::string, Tensor, DType, Device, Placement,
                               NdSbp, std::shared_ptr<ModuleObject>, data::Batches, std::vector<Value>, Tuple>;
  Value() = default;
  template <std::same_as<bool> T>
  Value(T b) : data(b) {}  // NOLINT(google-explicit-constructor), and so on
  template <std::integral T>
  requires(!std::same_as<T, bool>) Value(T n) : data(static_cast<int64_t>(n)) {}
  Value(double x) : data(x) {}
  Value(const char* text) : data(std::string(text)) {}
  Value(std::string text) : data(std::move(text)) {}
  Value(Tensor t) : data(std::move(t)) {}
  Value(std::nullptr_t) {}  // None
  Value(std::shared_ptr<ModuleObject> m) : data(std::move(m)) {}
  Value(std::vector<Value> list) : data(std::move(list)) {}
  Value(Tuple tuple) : data(std::move(tuple)) {}
  explicit Value(Variant v) : data(std::move(v)) {}

  // Python's None.
  bool is_none() const { return std::holds_alternative<std::monostate>(data); }
  // What Python calls its type.
  std::string_view kind() const;
  Variant data;
};

// Which argument is converted, for messages.
struct ArgumentName {
  std::string_view function, argument;
};
// Errors (TypeError): always.
[[noreturn]] void fail_conversion(const ArgumentName& name, std::string_view wanted, const Value& found);
// The class's, as C++ spells it.
std::string class_name(const std::type_info& type);

// Conversion<T>: kName, what Python's caller has to pass; from(value, name), which raises TypeError for anything else;
// to(value). Specialize it for a type of your own.
template <class T>
struct Conversion {
  static_assert(sizeof(T) == 0,
                "an exported function takes and returns bool, integers, floating point numbers, std::string, Tensor, "
                "DType, Device, Placement, NdSbp, Dims, data::Batches, modules, and std::optional, "
                "std::vector, std::pair, std::tuple and std::array of them; specialize holon::exports::Conversion for "
                "other types");
};

template <class T>
concept PlainValue =
    std::same_as<T, Tensor> || std::same_as<T, DType> || std::same_as<T, Device> || std::same_as<T, Placement>;

template <>
struct Conversion<bool> {
  static constexpr std::string_view kName = "bool";
  static bool from(const Value& v, const ArgumentName& name) {
    if (auto* b = std::get_if<bool>(&v.data)) return *b;
    fail_conversion(name, kName, v);
  }
  static Value to(bool b) { return b; }
};

// Errors also: a number that T does not hold.
template <std::integral T>
struct Conversion<T> {
  static constexpr std::string_view kName = "int";
  static T from(const Value& v, const ArgumentName& name) {
    auto* n = std::get_if<int64_t>(&v.data);
    if (!n || !std::in_range<T>(*n)) fail_conversion(name, n ? "int that fits its C++ type" : kName, v);
    return static_cast<T>(*n);
  }
  static Value to(T n) { return static_cast<int64_t>(n); }
};

template <std::floating_point T>
struct Conversion<T> {
  static constexpr std::string_view kName = "float";
  static T from(const Value& v, const ArgumentName& name) {
    if (auto* x = std::get_if<double>(&v.data)) return static_cast<T>(*x);
    if (auto* n = std::get_if<int64_t>(&v.data)) return static_cast<T>(*n);
    fail_conversion(name, kName, v);
  }
  static Value to(T x) { return static_cast<double>(x); }
};

template <>
struct Conversion<std::string> {
  static constexpr std::string_view kName = "str";
  static std::string from(const Value& v, const ArgumentName& name) {
    if (auto* text = std::get_if<std::string>(&v.data)) return *text;
    fail_conversion(name, kName, v);
  }
  static Value to(std::string text) { return text; }
};

template <PlainValue T>
struct Conversion<T> {
  static constexpr std::string_view kName = std::same_as<T, Tensor> ? "Tensor"
      : std::same_as<T, DType>                                      ? "dtype"
      : std::same_as<T, Device>                                     ? "device"
                                                                    : "placement";
  static T from(const Value& v, const ArgumentName& name) {
    if (auto* t = std::get_if<T>(&v.data)) return *t;
    if constexpr (std::same_as<T, Tensor>)
      if (v.is_none()) return {};
    fail_conversion(name, kName, v);
  }
  static Value to(T t) { return Value(Value::Variant(std::move(t))); }
};

template <>
struct Conversion<NdSbp> {
  static constexpr std::string_view kName = "sbp, or a list of them";
  static NdSbp from(const Value& v, const ArgumentName& name);
  static Value to(const NdSbp& sbp) { return Value(Value::Variant(sbp)); }
};

template <>
struct Conversion<data::Batches> {
  static constexpr std::string_view kName = "iterable of batches";
  static data::Batches from(const Value& v, const ArgumentName& name);
};

namespace detail {
// The items of a list or tuple, or nullptr.
inline const std::vector<Value>* items_of(const Value& v) {
  if (auto* list = std::get_if<std::vector<Value>>(&v.data)) return list;
  if (auto* tuple = std::get_if<Tuple>(&v.data)) return &tuple->items;
  return nullptr;
}
template <class List, class Item>
struct ListConversion {
  static constexpr std::string_view kName = "list";
  static List from(const Value& v, const ArgumentName& name) {
    auto* items = items_of(v);
    if (!items) fail_conversion(name, kName, v);
    List list;
    for (auto& item : *items) list.push_back(Conversion<Item>::from(item, name));
    return list;
  }
  static Value to(const List& list) {
    std::vector<Value> items;
    for (auto& item : list) items.push_back(Conversion<Item>::to(item));
    return items;
  }
};
template <class Row>
struct TupleConversion {
  static constexpr std::string_view kName = "tuple";
  static Row from(const Value& v, const ArgumentName& name) {
    auto* items = items_of(v);
    if (!items || items->size() != std::tuple_size_v<Row>) fail_conversion(name, kName, v);
    return [&]<size_t... kI>(std::index_sequence<kI...>) {
      return Row{Conversion<std::tuple_element_t<kI, Row>>::from((*items)[kI], name)...};
    }
    (std::make_index_sequence<std::tuple_size_v<Row>>());
  }
  static Value to(const Row& row) {
    return std::apply([](auto&... x) { return Value(Tuple{{Conversion<std::decay_t<decltype(x)>>::to(x)...}}); }, row);
  }
};
}  // namespace detail

template <class T>
struct Conversion<std::vector<T>> : detail::ListConversion<std::vector<T>, T> {};
template <>
struct Conversion<Dims> : detail::ListConversion<Dims, int64_t> {};
template <class A, class B>
struct Conversion<std::pair<A, B>> : detail::TupleConversion<std::pair<A, B>> {};
template <class... T>
struct Conversion<std::tuple<T...>> : detail::TupleConversion<std::tuple<T...>> {};
template <class T, size_t kN>
struct Conversion<std::array<T, kN>> : detail::TupleConversion<std::array<T, kN>> {};

template <class T>
struct Conversion<std::optional<T>> {
  static constexpr std::string_view kName = Conversion<T>::kName;
  static std::optional<T> from(const Value& v, const ArgumentName& name) {
    if (v.is_none()) return std::nullopt;
    return Conversion<T>::from(v, name);
  }
  static Value to(const std::optional<T>& x) { return x ? Conversion<T>::to(*x) : Value(); }
};

// A module is passed by reference: Python's object and the function's argument are the same. nn::Module: any module
// that is defined in C++.
template <std::derived_from<nn::Module> M>
struct ModuleHolder final : ModuleObject {
  explicit ModuleHolder(M m) : object(std::move(m)) {}
  nn::Module& module() override { return object; }
  M object;
};
template <std::derived_from<nn::Module> M>
struct Conversion<M> {
  static M& from(const Value& v, const ArgumentName& name) {
    auto* held = std::get_if<std::shared_ptr<ModuleObject>>(&v.data);
    M* m = held ? dynamic_cast<M*>(&(*held)->module()) : nullptr;
    if (!m) fail_conversion(name, std::same_as<M, nn::Module> ? "module of C++" : class_name(typeid(M)), v);
    return *m;
  }
  static Value to(M m) { return Value(std::shared_ptr<ModuleObject>(std::make_shared<ModuleHolder<M>>(std::move(m)))); }
};

}  // namespace holon::exports
