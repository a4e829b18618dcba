// holon._C: the core as a Python module. The package in python/holon gives its parts their public names.
#include "bind.h"
#include "holon/version.h"

namespace {

// unpickle(name, ...): calls a function of this module. Pickle finds a plain C function by its name, but not
// nanobind's.
PyObject* unpickle(PyObject* module, PyObject* args) {
  if (PyTuple_GET_SIZE(args) < 1) return PyErr_Format(PyExc_TypeError, "unpickle: the name of a function is missing.");
  PyObject* function = PyObject_GetAttr(module, PyTuple_GET_ITEM(args, 0));
  PyObject* rest = function ? PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args)) : nullptr;
  PyObject* result = rest ? PyObject_CallObject(function, rest) : nullptr;
  Py_XDECREF(rest);
  Py_XDECREF(function);
  return result;
}

PyMethodDef functions[] = {{"unpickle", unpickle, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

NB_MODULE(_C, m) {
  using namespace holon::python;
  m.doc() = "Holon's C++ core. Use the package holon.";
  m.attr("__version__") = HOLON_VERSION;
  // Tensor and its functions live as long as the process, which nanobind would report at exit.
  nb::set_leak_warnings(false);
  if (PyModule_AddFunctions(m.ptr(), functions) < 0) raise_python();
  bind_errors(m);
  bind_cuda(m);
  bind_types(m);
  bind_global(m);
  bind_global_mode(m);
  bind_point_to_point(m);
  bind_tensor_type(m);
  bind_ops(m);
  bind_tensor(m);
  bind_conversion(m);
  bind_numpy(m);
  bind_data(m);
  bind_autograd(m);
  bind_boxing(m);
  bind_contract(m);
  bind_random(m);
  bind_optim(m);
  bind_float8(m);
  bind_graph(m);
  bind_schedules(m);
  bind_exports(m);
  bind_models(m);
  bind_conformance(m);
  bind_verify(m);
  bind_readers(m);
  bind_checkpoint(m);
  bind_ranks(m);
}
