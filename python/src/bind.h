// What the files of the extension share: the Tensor object, errors, conversions and the parts that make up the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <memory>
#include <string>

#include "annotations.h"
#include "holon/tensor/tensor.h"

namespace nb = nanobind;

namespace holon::nn {
class Module;
}

namespace holon::python {

// Tensor is a plain CPython type: a call of an op makes one, and must not pay for a general instance map.
struct TensorObject {
  PyObject_HEAD PyObject* weakrefs;
  uint8_t marks;
  Tensor tensor;
};
inline constexpr uint8_t kKnown = 1;  // it is found again by its tensor: known_object()
inline constexpr uint8_t kUsersStrides =
    2;  // a window that the program made, on rows in their order: no layout of ours
extern PyTypeObject* tensor_type;
extern PyGetSetDef tensor_properties[];  // in tensor.cpp

inline bool is_tensor(PyObject* o) { return Py_TYPE(o) == tensor_type || PyType_IsSubtype(Py_TYPE(o), tensor_type); }
// Pre: is_tensor(o).
inline Tensor& tensor_of(PyObject* o) { return reinterpret_cast<TensorObject*>(o)->tensor; }
// A new reference to a new object for the tensor; None for an undefined one.
PyObject* wrap(Tensor t);
// The same object for the same tensor, as long as it lives: x.grad is x.grad.
PyObject* known_object(Tensor t);
void make_known(PyObject* o);
// view is what an op, or an index, has made of x: marks it where it shares x's memory.
void note_window(PyObject* x, PyObject* view);
inline nb::object wrap_object(Tensor t) { return nb::steal(wrap(std::move(t))); }

// Makes the exception being handled Python's. Pre: called in a catch block, with the GIL held.
void set_python_error() noexcept;
// Runs f for a C slot: what it throws becomes Python's error and the result `failed`.
template <class F, class R = PyObject*>
R guarded(F&& f, R failed = R{}) noexcept {
  try {
    return f();
  } catch (...) {
    set_python_error();
    return failed;
  }
}
// Throws the error that a C-API call left behind.
[[noreturn]] inline void raise_python() { throw nb::python_error(); }
inline PyObject* checked(PyObject* o) {
  if (!o) raise_python();
  return o;
}
// Holds a Python object where C++ may release it on any thread, with or without the GIL.
class SharedObject {
 public:
  explicit SharedObject(nb::object o)
      : p_(o.release().ptr(), [](PyObject* p) {
          if (!Py_IsInitialized()) return;
          nb::gil_scoped_acquire gil;
          Py_DECREF(p);
        }) {}
  nb::handle get() const { return p_.get(); }

 private:
  std::shared_ptr<PyObject> p_;
};

// A dtype as a Python object; nanobind binds classes, not values of an enum with methods.
struct DTypeObject {
  DType value;
  bool operator==(const DTypeObject&) const = default;
};
ObjectOf<"dtype"> dtype_object(DType dtype);
ObjectOf<"Size"> size_object(std::span<const int64_t> dims);
nb::object sbp_tuple(const NdSbp& sbp);
ObjectOf<"Number"> scalar_object(const Scalar& s);

// The value of a tensor as Python sees it, in numpy.cpp.
ObjectOf<"numpy.ndarray"> to_numpy(const Tensor& t);
nb::object to_list(const Tensor& t);
// A tensor from nested lists, numbers, arrays or tensors; dtype none() is found from the data.
Tensor tensor_from_data(nb::handle data, nb::handle dtype, nb::handle device, bool requires_grad, nb::handle placement,
                        nb::handle sbp, bool pin_memory = false);

// Whether a source file of Python's is outside the folders that add_package_folder() has named: the user's program.
// Pre: the interpreter's lock is held. In ranks.cpp.
bool is_users_file(const char* file);

// Indexing, in indexing.cpp.
PyObject* get_item(PyObject* self, PyObject* key);
int set_item(PyObject* self, PyObject* key, PyObject* value);

// The parts, in the order in which module.cpp calls them.
void bind_errors(nb::module_& m);
void bind_cuda(nb::module_& m);
void bind_types(nb::module_& m);   // dtype, device, Size
void bind_global(nb::module_& m);  // placement, sbp
void bind_global_mode(nb::module_& m);
void bind_point_to_point(nb::module_& m);  // comm.send, comm.recv
void bind_tensor_type(nb::module_& m);
void bind_ops(nb::module_& m);         // op functions, also as methods of Tensor
void bind_tensor(nb::module_& m);      // properties and methods by hand
void bind_conversion(nb::module_& m);  // Tensor.to and its short forms
void bind_numpy(nb::module_& m);
void bind_data(nb::module_& m);  // tensor(), as_tensor()
void bind_autograd(nb::module_& m);
void bind_ranks(nb::module_& m);
void bind_boxing(nb::module_& m);
void bind_contract(nb::module_& m);
void bind_random(nb::module_& m);
void bind_optim(nb::module_& m);
void bind_readers(nb::module_& m);
void bind_checkpoint(nb::module_& m);  // save, load
void bind_float8(nb::module_& m);      // recipes of float8 training
void bind_graph(nb::module_& m);       // nn.Graph
void bind_schedules(nb::module_& m);   // of pipelines
void bind_exports(nb::module_& m);     // modules and functions of libraries
void bind_models(nb::module_& m);      // models of checkpoints
void bind_conformance(nb::module_& m);
void bind_verify(nb::module_& m);

// A handle of a module of C++ as Python's CppModule, in exports.cpp.
nb::object cpp_module_object(const nn::Module& module);

// What __reduce__ returns to have an object made by a function of this module.
template <class... Args>
nb::tuple pickled(const char* function, Args&&... args) {
  return nb::make_tuple(nb::module_::import_("holon._C").attr("unpickle"),
                        nb::make_tuple(function, std::forward<Args>(args)...));
}

// Defines a method of Tensor.
template <class F, class... Extra>
void def_method(const char* name, F&& f, const Extra&... extra) {
  nb::cpp_function_def(std::forward<F>(f), nb::scope(reinterpret_cast<PyObject*>(tensor_type)), nb::name(name),
                       nb::is_method(), extra...);
}

}  // namespace holon::python

namespace nanobind::detail {
template <>
struct type_caster<holon::Tensor> {
  NB_TYPE_CASTER(holon::Tensor, const_name("Tensor"))
  bool from_python(handle src, uint32_t, cleanup_list*) noexcept {
    if (!holon::python::is_tensor(src.ptr())) return false;
    value = holon::python::tensor_of(src.ptr());
    return true;
  }
  static handle from_cpp(const holon::Tensor& t, rv_policy, cleanup_list*) noexcept { return holon::python::wrap(t); }
};
}  // namespace nanobind::detail
