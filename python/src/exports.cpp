// What libraries export (holon/exports/python.h): classes and functions whose Python face the package makes
// (python/holon/nn/cpp.py).
#include "holon/exports/python.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "args.h"
#include "bind.h"
#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/nn/module_access.h"
#include "holon/tensor/tracer.h"

namespace holon::python {

namespace {

using exports::Value;

// A handle of a C++ module. of: its exported class, or nullptr for one that is known as a part of others only.
struct CppModule {
  std::shared_ptr<exports::ModuleObject> object;
  const exports::ModuleExport* of = nullptr;
  nn::Module& module() const { return object->module(); }
};

Value value_of(nb::handle o, const char* function);

std::vector<Value> values_of(nb::handle items, const char* function) {
  std::vector<Value> list;
  for (nb::handle item : items) list.push_back(value_of(item, function));
  return list;
}

// number: of the batch, for messages.
void read_batch(nb::handle item, int64_t number, std::vector<Tensor>* batch) {
  if (is_tensor(item.ptr())) {
    batch->push_back(tensor_of(item.ptr()));
    return;
  }
  if (!PyList_Check(item.ptr()) && !PyTuple_Check(item.ptr()))
    fail_type("batch {} is {}; a batch for C++ is a tensor, or a list or tuple of tensors.", number,
              describe(item.ptr()));
  size_t i = 0;
  for (nb::handle t : item) {
    if (!is_tensor(t.ptr()))
      fail_type("item {} of batch {} is {}; a batch for C++ is a tensor, or a list or tuple of tensors.", i, number,
                describe(t.ptr()));
    batch->push_back(tensor_of(t.ptr()));
    ++i;
  }
}

// Called with and without the lock.
data::Batches batches_of(nb::handle iterable) {
  return data::Batches([source = SharedObject(nb::borrow(iterable))]() -> data::Batches::Next {
    nb::gil_scoped_acquire lock;
    SharedObject iterator(nb::steal(checked(PyObject_GetIter(source.get().ptr()))));
    return [iterator, number = int64_t{0}](std::vector<Tensor>* batch) mutable {
      nb::gil_scoped_acquire inner;
      if (PyErr_CheckSignals() < 0) raise_python();  // Ctrl-C ends a loop whose iterable runs no code of Python's
      nb::object item = nb::steal(PyIter_Next(iterator.get().ptr()));
      if (!item.is_valid()) {
        if (PyErr_Occurred()) raise_python();
        return false;
      }
      read_batch(item, number++, batch);
      return true;
    };
  });
}

Value value_of(nb::handle o, const char* function) {
  PyObject* p = o.ptr();
  if (p == Py_None) return {};
  if (PyBool_Check(p)) return p == Py_True;
  if (PyFloat_Check(p)) return PyFloat_AS_DOUBLE(p);
  if (PyUnicode_Check(p)) return nb::cast<std::string>(o);
  if (is_tensor(p)) return tensor_of(p);
  if (PyList_Check(p)) return values_of(o, function);
  CppModule* module = nullptr;
  if (nb::object core = nb::getattr(o, "_cpp", nb::none()); nb::try_cast(core, module) && module) return module->object;
  DType dtype;
  Placement placement;
  NdSbp sbp;
  Device device;
  if (nb::isinstance<Device>(o)) return Value(Value::Variant(nb::cast<Device>(o)));
  if (!PyType_Check(p) && !is_numpy(p) && to_dtype(p, &dtype)) return Value(Value::Variant(dtype));
  if (to_placement(p, &placement)) return Value(Value::Variant(placement));
  if (!PyTuple_Check(p) && to_nd_sbp(p, &sbp)) return Value(Value::Variant(sbp));
  if (PyTuple_Check(p)) return exports::Tuple{values_of(o, function)};
  int64_t n;
  double x;
  if (to_int(p, &n)) return n;
  if (to_float(p, &x)) return x;
  if (!PyDict_Check(p) && !is_numpy(p) && (Py_TYPE(p)->tp_iter || PySequence_Check(p)))
    return Value(Value::Variant(batches_of(o)));
  fail_type(
      "{}: C++ does not take {}. Pass numbers, text, tensors, modules that are defined in C++, lists and tuples of "
      "them, or an iterable of batches.",
      function, describe(p));
}

nb::object object_of(const Value& value) {
  return std::visit(
      [](const auto& v) -> nb::object {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nb::none();
        } else if constexpr (std::is_same_v<T, Tensor>) {
          return wrap_object(v);
        } else if constexpr (std::is_same_v<T, DType>) {
          return dtype_object(v);
        } else if constexpr (std::is_same_v<T, NdSbp>) {
          return sbp_tuple(v);
        } else if constexpr (std::is_same_v<T, std::vector<Value>>) {
          nb::list list;
          for (auto& item : v) list.append(object_of(item));
          return list;
        } else if constexpr (std::is_same_v<T, exports::Tuple>) {
          nb::list list;
          for (auto& item : v.items) list.append(object_of(item));
          return nb::tuple(list);
        } else if constexpr (std::is_same_v<T, std::shared_ptr<exports::ModuleObject>>) {
          return nb::cast(CppModule{v, exports::find_export(typeid(v->module()))});
        } else if constexpr (std::is_same_v<T, data::Batches>) {
          fail_type("a function of C++ cannot return batches to Python.");
        } else {
          return nb::cast(v);
        }
      },
      value.data);
}

void check_count(const exports::Callable& callable, size_t given) {
  if (given != callable.n_arguments)
    fail_type("{}: takes {} arguments, got {}.", callable.name, callable.n_arguments, given);
}

// (name, is optional, its value then) of each; "" where it has no name.
nb::list arguments_of(const exports::Callable& callable) {
  nb::list list;
  for (size_t i = 0; i < callable.n_arguments; ++i) {
    const auto* a = i < callable.arguments.size() ? &callable.arguments[i] : nullptr;
    list.append(nb::make_tuple(a ? a->name : "", a && a->optional, a ? object_of(a->value) : nb::none()));
  }
  return list;
}

CppModule make(const exports::ModuleExport& e, nb::tuple args) {
  check_count(e, args.size());
  return {e.make(e, values_of(args, e.name.c_str())), &e};
}

nb::object call_module(const CppModule& m, nb::tuple args) {
  if (!m.of) fail_runtime("a part of a module that is defined in C++ can be called in C++ only.");
  check_count(m.of->forward, args.size());
  return object_of(m.of->call(m.module(), m.of->forward, values_of(args, m.of->name.c_str())));
}

nb::object call_function(const exports::FunctionExport& e, nb::tuple args) {
  check_count(e, args.size());
  std::optional<std::vector<Value>> values = values_of(args, e.name.c_str());
  Value result;
  {
    // What a capture asks for is Python's.
    std::optional<nb::gil_scoped_release> released;
    if (!tracer()) released.emplace();
    result = e.call(e, *values);
    values.reset();
  }
  return object_of(result);
}

// A number for what is registered in the module and all below it: another one after any change.
uint64_t changes_of(const nn::Module& module) {
  uint64_t n = nn::detail::ModuleAccess::changes(module);
  for (auto& [name, m] : module.named_modules()) n = hash_words(n, m.identity(), nn::detail::ModuleAccess::changes(m));
  return n;
}

}  // namespace

nb::object cpp_module_object(const nn::Module& module) {
  return nb::cast(CppModule{std::make_shared<exports::ModuleHolder<nn::Module>>(module), nullptr});
}

void bind_exports(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<CppModule>(m, "CppModule", "A module of C++, under one of Python's.")
      .def_prop_ro("class_name", [](const CppModule& c) { return c.of ? c.of->name : std::string(); })
      .def_prop_ro("identity", [](const CppModule& c) { return reinterpret_cast<uintptr_t>(c.module().identity()); })
      .def_prop_ro("changes", [](const CppModule& c) { return changes_of(c.module()); })
      .def_prop_ro("own_changes", [](const CppModule& c) { return nn::detail::ModuleAccess::changes(c.module()); })
      .def_prop_rw(
          "training", [](const CppModule& c) { return c.module().is_training(); },
          [](const CppModule& c, bool on) { nn::detail::ModuleAccess::set_training(c.module(), on); })
      .def("parameters",
           [](const CppModule& c) {
             nb::list list;
             for (auto& [name, t] : nn::detail::ModuleAccess::parameters(c.module()))
               list.append(nb::make_tuple(name, wrap_object(t)));
             return list;
           })
      .def("buffers",
           [](const CppModule& c) {
             nb::list list;
             for (auto& b : nn::detail::ModuleAccess::buffers(c.module()))
               list.append(nb::make_tuple(b.name, wrap_object(b.tensor), b.persistent));
             return list;
           })
      .def("children",
           [](const CppModule& c) {
             nb::list list;
             for (auto& [name, child] : c.module().named_children())
               list.append(nb::make_tuple(
                   name, CppModule{std::make_shared<exports::ModuleHolder<nn::Module>>(child), nullptr}));
             return list;
           })
      .def(
          "replace_parameter",
          [](const CppModule& c, const std::string& name, const Tensor& t) { c.module().replace_parameter(name, t); },
          "name"_a, "value"_a)
      .def(
          "replace_buffer",
          [](const CppModule& c, const std::string& name, const Tensor& t) { c.module().replace_buffer(name, t); },
          "name"_a, "value"_a)
      .def(
          "replace_module",
          [](const CppModule& c, const std::string& name, const CppModule& module) {
            c.module().replace_module(name, module.module());
          },
          "name"_a, "module"_a)
      .def("call", call_module, "args"_a);
  nb::class_<exports::ModuleExport>(m, "ExportedModule", "A class that a library exports.")
      .def_ro("name", &exports::ModuleExport::name)
      .def_ro("doc", &exports::ModuleExport::doc)
      .def("arguments", [](const exports::ModuleExport& e) { return arguments_of(e); })
      .def("forward_arguments", [](const exports::ModuleExport& e) { return arguments_of(e.forward); })
      .def("make", make, "args"_a);
  nb::class_<exports::FunctionExport>(m, "ExportedFunction", "A function that a library exports.")
      .def_ro("name", &exports::FunctionExport::name)
      .def_ro("doc", &exports::FunctionExport::doc)
      .def("arguments", [](const exports::FunctionExport& e) { return arguments_of(e); })
      .def("call", call_function, "args"_a);
  m.def(
      "load_exports",
      [](const std::string& path) {
        exports::Exports all = exports::load_exports(path);
        nb::list modules, functions;
        for (auto* e : all.modules) modules.append(nb::cast(e, nb::rv_policy::reference));
        for (auto* e : all.functions) functions.append(nb::cast(e, nb::rv_policy::reference));
        return nb::make_tuple(modules, functions);
      },
      "path"_a, "The classes and the functions that a library exports.");
}

}  // namespace holon::python
