// Modules and functions of C++ as Python's: a library declares them, and Python loads it, in any version of it.
//
//   // my_models.cpp: a shared library, linked to Holon::holon
//   #include <holon/holon.h>
//   using namespace holon;
//
//   struct Net : nn::Layer<Net> {
//     nn::Linear up, down;
//     explicit Net(int64_t width) : up(register_module("up", nn::Linear(4, width))), ... {}
//     Tensor forward(const Tensor& x) const { return down(relu(up(x))); }
//   };
//   HOLON_PYTHON_MODULE(Net, int64_t).arguments({{"width", 16}});
//
//   double train(Net& net, const data::Batches& batches, double lr);
//   HOLON_PYTHON_FUNCTION(train).arguments({"net", "batches", {"lr", 0.01}});
//
//   # Python
//   models = holon.import_library("libmy_models.so")
//   net = models.Net(width=32)              # a holon.nn.Module
//   models.train(net, loader)
//
// Net(...) in Python makes a Net of C++: its parameters are the same tensors on both sides. The types of arguments and
// results are those of Conversion (holon/exports/value.h). An Error becomes the exception that it would be for an op.
// A function runs without Python's lock.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "holon/exports/value.h"

namespace holon::exports {

// An argument's name, and its value where the caller leaves it out: "width", or {"width", 16}.
struct Argument {
  Argument(const char* name) : name(name) {}  // NOLINT(google-explicit-constructor)
  Argument(const char* name, Value value) : name(name), value(std::move(value)), optional(true) {}
  std::string name;
  Value value;
  bool optional = false;
};

// What can be called, from Python by position and by name. Arguments without names have them by position only.
struct Callable {
  std::string name, doc;
  std::vector<Argument> arguments;
  size_t n_arguments = 0;
  // The name of an argument, or "".
  std::string_view argument(size_t i) const { return i < arguments.size() ? std::string_view(arguments[i].name) : ""; }
};

// A function.
struct FunctionExport : Callable {
  std::function<Value(const Callable&, std::span<const Value>)> call;
};

// A class, whose constructor its own arguments are.
struct ModuleExport : Callable {
  Callable forward;
  const std::type_info* type = nullptr;
  std::function<std::shared_ptr<ModuleObject>(const Callable&, std::span<const Value>)> make;
  std::function<Value(nn::Module&, const Callable&, std::span<const Value>)> call;
};

// Loads a library as holon::load_library() does, and returns what it exports, in the order of its source. Errors
// (RuntimeError): those of load_library(); a declaration that is wrong.
struct Exports {
  std::vector<std::string> ops;
  std::vector<const ModuleExport*> modules;
  std::vector<const FunctionExport*> functions;
};
Exports load_exports(const std::string& path);
// That of a module's own class, in whatever library, or nullptr.
const ModuleExport* find_export(const std::type_info& type);

namespace detail {

inline constexpr int kExportVersion = 1;

// Takes a declaration over. Where a library is being loaded its errors are kept until that is done.
ModuleExport* add_export(ModuleExport made, const void* variable, int version);
FunctionExport* add_export(FunctionExport made, const void* variable, int version);
void set_arguments(Callable* callable, std::vector<Argument> arguments, const char* call);

// How an argument is held while a function runs: modules by reference, all else as a value.
template <class P>
struct HeldAs {
  using Plain = std::remove_cvref_t<P>;
  using type = std::conditional_t<
      std::derived_from<Plain, nn::Module>, Plain&,
      std::conditional_t<std::derived_from<Plain, Tensor>, Tensor,
                         std::conditional_t<std::same_as<Plain, std::string_view> || std::same_as<Plain, const char*>,
                                            std::string, Plain>>>;
};
template <class P>
using Held = typename HeldAs<P>::type;

template <class P>
decltype(auto) pass(std::remove_reference_t<Held<P>>& held) {
  if constexpr (std::same_as<std::remove_cvref_t<P>, const char*>)
    return held.c_str();
  else if constexpr (std::is_lvalue_reference_v<P> || std::derived_from<std::remove_cvref_t<P>, nn::Module>)
    return (held);
  else
    return std::move(held);
}

template <class R>
using ResultOf = std::conditional_t<std::derived_from<std::remove_cvref_t<R>, Tensor>, Tensor, std::remove_cvref_t<R>>;

// f(arguments...) with the values as arguments of types P. Pre: as many values as types.
template <class... P, class F>
auto call_with(const Callable& callable, std::span<const Value> values, F&& f) {
  return [&]<size_t... kI>(std::index_sequence<kI...>) {
    std::tuple<Held<P>...> held{Conversion<std::remove_cvref_t<Held<P>>>::from(
        values[kI], ArgumentName{callable.name, callable.argument(kI)})...};
    return f(pass<P>(std::get<kI>(held))...);
  }
  (std::index_sequence_for<P...>());
}

template <class... P, class F>
Value value_of_call(const Callable& callable, std::span<const Value> values, F&& f) {
  return call_with<P...>(callable, values, [&](auto&&... arguments) -> Value {
    using R = decltype(f(std::forward<decltype(arguments)>(arguments)...));
    if constexpr (std::is_void_v<R>) {
      f(std::forward<decltype(arguments)>(arguments)...);
      return {};
    } else {
      return Conversion<ResultOf<R>>::to(f(std::forward<decltype(arguments)>(arguments)...));
    }
  });
}

template <class... P>
struct Types {
  static constexpr size_t kCount = sizeof...(P);
};
template <class F>
struct ArgumentsOf;
template <class R, class C, class... P>
struct ArgumentsOf<R (C::*)(P...)> {
  using type = Types<P...>;
};
template <class R, class C, class... P>
struct ArgumentsOf<R (C::*)(P...) const> {
  using type = Types<P...>;
};

template <class M>
constexpr auto call_of() {
  if constexpr (requires { &M::forward; })
    return &M::forward;
  else if constexpr (requires { &M::operator(); })
    return &M::operator();
  else
    static_assert(sizeof(M) == 0, "a module for Python has one forward(), or one operator(), not a template of one");
}

template <class M, class... P>
Value call_module(Types<P...>, nn::Module& module, const Callable& callable, std::span<const Value> values) {
  auto& m = dynamic_cast<M&>(module);
  return value_of_call<P...>(callable, values, [&](auto&&... arguments) -> decltype(auto) {
    return m(std::forward<decltype(arguments)>(arguments)...);
  });
}

}  // namespace detail

// What HOLON_PYTHON_MODULE returns: names of arguments and documentation.
class ModuleBuilder {
 public:
  explicit ModuleBuilder(ModuleExport* made) : made_(made) {}
  // Of the constructor and of the call. Errors: not as many as there are parameters.
  ModuleBuilder& arguments(std::vector<Argument> arguments) {
    detail::set_arguments(made_, std::move(arguments), "arguments");
    return *this;
  }
  ModuleBuilder& forward_arguments(std::vector<Argument> arguments) {
    detail::set_arguments(&made_->forward, std::move(arguments), "forward_arguments");
    return *this;
  }
  ModuleBuilder& doc(std::string text) {
    made_->doc = std::move(text);
    return *this;
  }

 private:
  ModuleExport* made_;
};

// What HOLON_PYTHON_FUNCTION returns.
class FunctionBuilder {
 public:
  explicit FunctionBuilder(FunctionExport* made) : made_(made) {}
  // Errors: not as many as there are parameters.
  FunctionBuilder& arguments(std::vector<Argument> arguments) {
    detail::set_arguments(made_, std::move(arguments), "arguments");
    return *this;
  }
  // For Python's help().
  FunctionBuilder& doc(std::string text) {
    made_->doc = std::move(text);
    return *this;
  }

 private:
  FunctionExport* made_;
};

// What the macros below do. variable: an object of the library's own.
template <std::derived_from<nn::Module> M, class... P>
ModuleBuilder export_module(const char* name, const void* variable, int version = detail::kExportVersion) {
  static_assert(std::constructible_from<M, P...>, "the class has no constructor from these types");
  using Arguments = typename detail::ArgumentsOf<decltype(detail::call_of<M>())>::type;
  ModuleExport made;
  made.name = name;
  made.n_arguments = sizeof...(P);
  made.type = &typeid(M);
  made.forward.n_arguments = Arguments::kCount;
  made.make = [](const Callable& callable, std::span<const Value> values) {
    return detail::call_with<P...>(callable, values, [](auto&&... arguments) -> std::shared_ptr<ModuleObject> {
      return std::make_shared<ModuleHolder<M>>(M(std::forward<decltype(arguments)>(arguments)...));
    });
  };
  made.call = [](nn::Module& module, const Callable& callable, std::span<const Value> values) {
    return detail::call_module<M>(Arguments(), module, callable, values);
  };
  return ModuleBuilder(detail::add_export(std::move(made), variable, version));
}

// The same for a function.
template <class R, class... P>
FunctionBuilder export_function(const char* name, R (*function)(P...), const void* variable,
                                int version = detail::kExportVersion) {
  FunctionExport made;
  made.name = name;
  made.n_arguments = sizeof...(P);
  made.call = [function](const Callable& callable, std::span<const Value> values) {
    return detail::value_of_call<P...>(callable, values, function);
  };
  return FunctionBuilder(detail::add_export(std::move(made), variable, version));
}

}  // namespace holon::exports

#define HOLON_PYTHON_JOIN_(a, b) a##b
#define HOLON_PYTHON_NAME_(line) HOLON_PYTHON_JOIN_(holon_python_export_, line)
// Exports a class that derives from nn::Module; the types of its constructor's parameters follow.
#define HOLON_PYTHON_MODULE(Class, ...)                                       \
  static const ::holon::exports::ModuleBuilder HOLON_PYTHON_NAME_(__LINE__) = \
      ::holon::exports::export_module<Class __VA_OPT__(, ) __VA_ARGS__>(#Class, &HOLON_PYTHON_NAME_(__LINE__))
// Exports a function under its name.
#define HOLON_PYTHON_FUNCTION(function)                                         \
  static const ::holon::exports::FunctionBuilder HOLON_PYTHON_NAME_(__LINE__) = \
      ::holon::exports::export_function(#function, &function, &HOLON_PYTHON_NAME_(__LINE__))
