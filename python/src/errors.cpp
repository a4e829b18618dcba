// Core errors as Python exceptions, by kind.
#include "bind.h"
#include "holon/base/error.h"

namespace holon::python {

namespace {

// A ValueError that `except RuntimeError` catches as well: programs for frameworks where sizes that do not fit are
// one expect that.
PyObject* value_error = PyExc_ValueError;
// What some frameworks assert, and others raise as one of three classes: whoever catches any of them gets it.
PyObject* layout_error = PyExc_AssertionError;

PyObject* exception_type(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kValue: return value_error;
    case ErrorKind::kLayout: return layout_error;
    case ErrorKind::kType: return PyExc_TypeError;
    case ErrorKind::kIndex: return PyExc_IndexError;
    case ErrorKind::kAttribute: return PyExc_AttributeError;
    case ErrorKind::kNotImplemented: return PyExc_NotImplementedError;
    default: return PyExc_RuntimeError;
  }
}

}  // namespace

void set_python_error() noexcept {
  try {
    throw;
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const Error& e) {
    PyErr_SetString(exception_type(e.kind()), e.what());
  } catch (const nb::builtin_exception& e) {
    PyErr_SetString(e.type() == nb::exception_type::type_error ? PyExc_TypeError : PyExc_ValueError, e.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an exception of an unknown type was thrown");
  }
}

void bind_errors(nb::module_& m) {
  nb::object bases = nb::make_tuple(nb::handle(PyExc_ValueError), nb::handle(PyExc_RuntimeError));
  value_error = checked(PyErr_NewException("builtins.ValueError", bases.ptr(), nullptr));
  // In another process it is the plain one.
  nb::setattr(
      nb::handle(value_error), "__reduce__",
      nb::cpp_function([](nb::handle self) { return nb::make_tuple(nb::handle(PyExc_ValueError), self.attr("args")); },
                       nb::is_method()));
  nb::object errors =
      nb::make_tuple(nb::handle(PyExc_AssertionError), nb::handle(value_error), nb::handle(PyExc_TypeError));
  layout_error = checked(PyErr_NewExceptionWithDoc(
      "holon.LayoutError", "A placement, sbp or device is missing, was passed twice, or does not fit the others.",
      errors.ptr(), nullptr));
  nb::setattr(
      nb::handle(layout_error), "__reduce__",
      nb::cpp_function([](nb::handle self) { return nb::make_tuple(nb::handle(layout_error), self.attr("args")); },
                       nb::is_method()));
  m.attr("LayoutError") = nb::handle(layout_error);
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Error& e) {
      PyErr_SetString(exception_type(e.kind()), e.what());
    }
  });
}

}  // namespace holon::python
