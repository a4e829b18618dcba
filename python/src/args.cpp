#include "args.h"

#include <cstring>

#include "holon/base/fmt.h"

namespace holon::python {

namespace {

// What is needed of numpy to tell its objects apart.
struct NumpyTypes {
  nb::object generic, boolean, integer, floating, ndarray, dtype;
};

const NumpyTypes& numpy() {
  static auto* types = [] {
    nb::module_ np = nb::module_::import_("numpy");
    return new NumpyTypes{np.attr("generic"),  np.attr("bool_"),   np.attr("integer"),
                          np.attr("floating"), np.attr("ndarray"), np.attr("dtype")};
  }();
  return *types;
}

bool is_a(PyObject* o, const nb::object& type) { return PyObject_IsInstance(o, type.ptr()) == 1; }

[[noreturn]] void fail_long() {
  PyErr_Clear();
  fail_value("a number does not fit in 64 bits; tensors hold integers of at most 64 bits.");
}

bool long_value(PyObject* o, int64_t* out) {
  *out = PyLong_AsLongLong(o);
  if (*out == -1 && PyErr_Occurred()) [[unlikely]]
    fail_long();
  return true;
}

}  // namespace

bool is_numpy(PyObject* o) {
  const char* name = Py_TYPE(o)->tp_name;
  if (std::strncmp(name, "numpy.", 6) == 0) return true;
  return PyType_GetFlags(Py_TYPE(o)) & Py_TPFLAGS_HEAPTYPE && PyObject_HasAttrString(o, "__array_interface__");
}

bool is_numpy_array(PyObject* o) { return is_numpy(o) && is_a(o, numpy().ndarray); }

bool to_scalar(PyObject* o, Scalar* out) {
  if (PyFloat_Check(o)) {
    *out = Scalar(PyFloat_AS_DOUBLE(o));
    return true;
  }
  if (PyBool_Check(o)) {
    *out = Scalar(o == Py_True);
    return true;
  }
  if (PyLong_Check(o)) {
    int64_t v;
    long_value(o, &v);
    *out = Scalar(v);
    return true;
  }
  if (is_tensor(o)) {
    const Tensor& t = tensor_of(o);
    if (t.ndim() != 0 || t.is_global()) return false;
    *out = t.item();
    return true;
  }
  if (!is_numpy(o) || !is_a(o, numpy().generic)) return false;
  if (is_a(o, numpy().boolean)) {
    *out = Scalar(PyObject_IsTrue(o) == 1);
  } else if (is_a(o, numpy().integer)) {
    nb::object index = nb::steal(checked(PyNumber_Index(o)));
    int64_t v;
    long_value(index.ptr(), &v);
    *out = Scalar(v);
  } else if (is_a(o, numpy().floating)) {
    nb::object f = nb::steal(checked(PyNumber_Float(o)));
    *out = Scalar(PyFloat_AS_DOUBLE(f.ptr()));
  } else {
    return false;
  }
  return true;
}

bool to_int(PyObject* o, int64_t* out) {
  if (PyLong_Check(o)) return long_value(o, out);
  if (!PyIndex_Check(o) || (is_tensor(o) && (tensor_of(o).ndim() != 0 || is_floating(tensor_of(o).dtype()))))
    return false;
  PyObject* index = PyNumber_Index(o);
  if (!index) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      return false;
    }
    raise_python();
  }
  nb::object held = nb::steal(index);
  return long_value(index, out);
}

bool to_float(PyObject* o, double* out) {
  if (PyFloat_Check(o)) {
    *out = PyFloat_AS_DOUBLE(o);
    return true;
  }
  Scalar s;
  if (!to_scalar(o, &s)) return false;
  *out = s.as_double();
  return true;
}

bool to_bool(PyObject* o, bool* out) {
  if (o == Py_True || o == Py_False) {
    *out = o == Py_True;
    return true;
  }
  if (!is_numpy(o) || !is_a(o, numpy().boolean)) return false;
  *out = PyObject_IsTrue(o) == 1;
  return true;
}

bool to_ints(PyObject* o, IntList* out) {
  bool list = PyList_Check(o) || PyTuple_Check(o) || PyRange_Check(o) || is_numpy_array(o);
  if (!list) return false;
  nb::object items = nb::steal(checked(PySequence_Fast(o, "")));
  Py_ssize_t n = PySequence_Fast_GET_SIZE(items.ptr());
  for (Py_ssize_t i = 0; i < n; ++i) {
    int64_t v;
    if (!to_int(PySequence_Fast_GET_ITEM(items.ptr(), i), &v)) return false;
    out->push_back(v);
  }
  return true;
}

bool to_dtype(PyObject* o, DType* out) {
  if (DTypeObject d; nb::try_cast(nb::handle(o), d)) {
    *out = d.value;
    return true;
  }
  if (o == reinterpret_cast<PyObject*>(&PyFloat_Type))
    *out = float64;
  else if (o == reinterpret_cast<PyObject*>(&PyLong_Type))
    *out = int64;
  else if (o == reinterpret_cast<PyObject*>(&PyBool_Type))
    *out = boolean;
  else {
    std::string text;
    if (PyUnicode_Check(o)) {
      text = nb::cast<std::string>(nb::handle(o));
    } else if (is_numpy(o) ||
               (PyType_Check(o) && std::strncmp(reinterpret_cast<PyTypeObject*>(o)->tp_name, "numpy.", 6) == 0)) {
      text = nb::cast<std::string>(nb::str(numpy().dtype(nb::handle(o)).attr("name")));
    } else if (PyType_Check(o) && PyObject_HasAttrString(o, "dtype")) {  // FloatTensor and its like
      DTypeObject d;
      if (!nb::try_cast(nb::handle(o).attr("dtype"), d)) return false;
      *out = d.value;
      return true;
    } else {
      return false;
    }
    for (int i = 0; i < kDTypeCount; ++i)
      if (text == name(static_cast<DType>(i))) {
        *out = static_cast<DType>(i);
        return true;
      }
    return false;
  }
  return true;
}

bool to_device(PyObject* o, Device* out) {
  if (nb::try_cast(nb::handle(o), *out)) return true;
  if (!PyUnicode_Check(o)) return false;
  *out = Device::parse(nb::cast<std::string_view>(nb::handle(o)));
  return true;
}

bool to_placement(PyObject* o, Placement* out) { return nb::try_cast(nb::handle(o), *out); }

bool to_nd_sbp(PyObject* o, NdSbp* out) {
  Sbp one;
  if (nb::try_cast(nb::handle(o), one)) {
    *out = NdSbp(one);
    return true;
  }
  if (!PyList_Check(o) && !PyTuple_Check(o)) return false;
  SmallVec<Sbp, 4> list;
  nb::object items = nb::steal(checked(PySequence_Fast(o, "")));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    if (!nb::try_cast(nb::handle(PySequence_Fast_GET_ITEM(items.ptr(), i)), one)) return false;
    list.push_back(one);
  }
  *out = NdSbp(std::span<const Sbp>(list));
  return true;
}

DType expect_dtype(nb::handle o, const char* call) {
  DType d;
  if (!to_dtype(o.ptr(), &d))
    fail_type("{}: dtype must be a dtype such as holon.float32, got {}.", call, describe(o.ptr()));
  return d;
}

Device expect_device(nb::handle o, const char* call) {
  Device d;
  if (!to_device(o.ptr(), &d))
    fail_type("{}: device must be a device or its name such as \"cpu\", got {}.", call, describe(o.ptr()));
  return d;
}

Placement expect_placement(nb::handle o, const char* call) {
  Placement p;
  if (!to_placement(o.ptr(), &p))
    fail_type("{}: placement must be a placement such as holon.placement(\"cpu\", ranks=[0, 1]), got {}.", call,
              describe(o.ptr()));
  return p;
}

NdSbp expect_nd_sbp(nb::handle o, const char* call) {
  NdSbp s;
  if (!to_nd_sbp(o.ptr(), &s))
    fail_layout("{}: sbp must be an sbp such as holon.sbp.split(0), or a list of them, got {}.", call,
                describe(o.ptr()));
  return s;
}

const Tensor& expect_tensor(nb::handle o, const char* call, const char* argument) {
  if (!is_tensor(o.ptr())) fail_type("{}: {} must be Tensor, got {}.", call, argument, describe(o.ptr()));
  return tensor_of(o.ptr());
}

std::string describe(PyObject* o) {
  if (o == Py_None) return "None";
  if (is_tensor(o)) return fmt::format("Tensor {}", tensor_of(o).shape());
  std::string type = Py_TYPE(o)->tp_name;
  if (PyList_Check(o) || PyTuple_Check(o)) {
    Py_ssize_t n = PySequence_Size(o);
    std::string of;
    if (n > 0) {
      nb::object first = nb::steal(PySequence_GetItem(o, 0));
      if (first.is_valid()) of = std::string(" (first: ") + Py_TYPE(first.ptr())->tp_name + ")";
    }
    return fmt::format("{} of {}{}", type, n, of);
  }
  if (PyUnicode_Check(o) || PyLong_Check(o) || PyFloat_Check(o)) {
    PyObject* text = PyObject_Repr(o);
    if (!text) {
      PyErr_Clear();
      return type;
    }
    std::string s = nb::cast<std::string>(nb::steal<nb::str>(text));
    if (s.size() > 40) s = s.substr(0, 37) + "...";
    return type + " " + s;
  }
  return type;
}

}  // namespace holon::python
