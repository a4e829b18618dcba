// dtype, device and Size.
#include <nanobind/operators.h>

#include "args.h"
#include "holon/base/fmt.h"
#include "holon/tensor/print.h"
#include "size.h"

namespace holon::python {

namespace {

PyObject* dtype_objects[kDTypeCount];
PyTypeObject* size_type;

PyObject* size_repr(PyObject* self) {
  return guarded([&] {
    std::string s = print_options().prefix + ".Size([";
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self); ++i) {
      nb::str item(nb::handle(PyTuple_GET_ITEM(self, i)));
      s += (i ? ", " : "") + std::string(item.c_str());
    }
    return nb::str((s + "])").c_str()).release().ptr();
  });
}

// A slice of a Size is one.
PyObject* size_subscript(PyObject* self, PyObject* key) {
  nb::object item = nb::steal(PyTuple_Type.tp_as_mapping->mp_subscript(self, key));
  if (!item.is_valid() || !PyTuple_CheckExact(item.ptr())) return item.release().ptr();
  return PyObject_CallOneArg(reinterpret_cast<PyObject*>(size_type), item.ptr());
}

PyObject* size_numel(PyObject* self, PyObject*) {
  return guarded([&] {
    IntList dims;
    if (!to_ints(self, &dims)) fail_type("Size.numel: not all of its items are integers.");
    int64_t n = 1;
    for (int64_t x : dims) n *= x;
    return checked(PyLong_FromLongLong(n));
  });
}

void make_size_type() {
  static PyMethodDef methods[] = {{"numel", size_numel, METH_NOARGS,
                                   "The number of elements of a tensor of this size."},
                                  {nullptr, nullptr, 0, nullptr}};
  PyType_Slot slots[] = {{Py_tp_repr, reinterpret_cast<void*>(size_repr)},
                         {Py_mp_subscript, reinterpret_cast<void*>(size_subscript)},
                         {Py_tp_methods, methods},
                         {Py_tp_doc, const_cast<char*>("The sizes of a tensor: a tuple of int.")},
                         {0, nullptr}};
  PyType_Spec spec = {"holon.Size", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  nb::object bases = nb::steal(checked(PyTuple_Pack(1, &PyTuple_Type)));
  size_type = reinterpret_cast<PyTypeObject*>(checked(PyType_FromSpecWithBases(&spec, bases.ptr())));
}

}  // namespace

ObjectOf<"dtype"> dtype_object(DType dtype) { return nb::borrow(dtype_objects[static_cast<int>(dtype)]); }

bool is_size(PyObject* o) { return PyObject_TypeCheck(o, size_type); }

ObjectOf<"Size"> size_object(std::span<const int64_t> dims) {
  nb::object size = nb::steal(checked(size_type->tp_alloc(size_type, static_cast<Py_ssize_t>(dims.size()))));
  for (size_t i = 0; i < dims.size(); ++i)
    PyTuple_SET_ITEM(size.ptr(), static_cast<Py_ssize_t>(i), checked(PyLong_FromLongLong(dims[i])));
  return size;
}

ObjectOf<"Number"> scalar_object(const Scalar& s) {
  switch (s.kind()) {
    case Scalar::Kind::kBool: return nb::bool_(s.as_int() != 0);
    case Scalar::Kind::kInt: return nb::int_(s.as_int());
    default: return nb::float_(s.as_double());
  }
}

void bind_types(nb::module_& m) {
  make_size_type();
  m.attr("Size") = nb::borrow(reinterpret_cast<PyObject*>(size_type));

  nb::class_<DTypeObject>(m, "dtype", "The type of a tensor's elements.")
      .def("__repr__", [](DTypeObject d) { return to_string(d.value); })
      .def(
          "__eq__",
          [](DTypeObject d, nb::handle o) {
            DType other;
            return to_dtype(o.ptr(), &other) && other == d.value;
          },
          nb::arg("other").none())
      .def("__hash__", [](DTypeObject d) { return static_cast<int>(d.value); })
      .def("__reduce__", [](DTypeObject d) { return pickled("parse_dtype", name(d.value)); })
      .def_prop_ro("name", [](DTypeObject d) { return name(d.value); })
      .def_prop_ro("is_floating_point", [](DTypeObject d) { return is_floating(d.value); })
      .def_prop_ro("is_signed", [](DTypeObject d) { return d.value != boolean && d.value != uint8; })
      .def_prop_ro("itemsize", [](DTypeObject d) { return size_bytes(d.value); });
  for (int i = 0; i < kDTypeCount; ++i) {
    auto dtype = static_cast<DType>(i);
    nb::object o = nb::cast(DTypeObject{dtype});
    m.attr(name(dtype)) = o;
    dtype_objects[i] = o.release().ptr();
  }
  const std::pair<const char*, DType> short_names[] = {{"float", float32}, {"double", float64}, {"half", float16},
                                                       {"int", int32},     {"long", int64},     {"char", int8},
                                                       {"bool", boolean}};
  for (auto& [alias, dtype] : short_names) m.attr(alias) = dtype_object(dtype);
  m.def(
      "parse_dtype", [](nb::handle o) { return dtype_object(expect_dtype(o, "dtype")); }, nb::arg("dtype"),
      "The dtype of a name, of a Python type or of numpy's dtype.");
  m.def(
      "promote_types",
      [](nb::handle a, nb::handle b) {
        return dtype_object(promote(expect_dtype(a, "promote_types"), expect_dtype(b, "promote_types")));
      },
      nb::arg("a"), nb::arg("b"), "The dtype in which an op on tensors of both takes place.");

  nb::class_<Device>(m, "device", "The device of a local tensor.")
      .def(
          "__init__",
          [](Device* d, HandleOf<"str | device"> type, int index) {
            Device parsed = expect_device(type, "device");
            if (index >= 0) parsed.index = static_cast<int16_t>(index);
            new (d) Device(parsed);
          },
          nb::arg("type"), nb::arg("index") = -1)
      .def("__repr__",
           [](const Device& d) {
             std::string s = fmt::format("device(type='{}'", name(d.type));
             return d.type == DeviceType::kCpu ? s + ")" : fmt::format("{}, index={})", s, d.index);
           })
      .def("__str__", [](const Device& d) { return d.str(); })
      .def(
          "__eq__",
          [](const Device& d, nb::handle o) {
            Device other;
            if (nb::try_cast(o, other)) return d == other;
            return PyUnicode_Check(o.ptr()) && d.str() == nb::cast<std::string>(o);
          },
          nb::arg("other").none())
      .def("__hash__", [](const Device& d) { return static_cast<int>(d.type) << 16 | d.index; })
      .def("__reduce__", [](const Device& d) { return pickled("device", d.str()); })
      .def_prop_ro("type", [](const Device& d) { return name(d.type); })
      .def_prop_ro(
          "index", [](const Device& d) -> ObjectOf<"int | None"> {
            return d.type == DeviceType::kCpu ? nb::object(nb::none()) : nb::object(nb::int_(d.index));
          });
}

}  // namespace holon::python
