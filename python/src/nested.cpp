#include "nested.h"

#include "args.h"
#include "holon/base/fmt.h"

namespace holon::python {

namespace {

struct Tags {
  PyObject *constant = PyUnicode_InternFromString("const"), *dict = PyUnicode_InternFromString("dict"),
           *list = PyUnicode_InternFromString("list"), *tuple = PyUnicode_InternFromString("tuple"),
           *named = PyUnicode_InternFromString("named");
};
const Tags& tags() {
  static const Tags& t = *new Tags;
  return t;
}

}  // namespace

nb::object take_apart(PyObject* o, Tensors& tensors) {
  const Tags& t = tags();
  if (is_tensor(o)) {
    tensors.push_back(tensor_of(o));
    return nb::none();
  }
  auto type = nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(o)));
  if (PyDict_Check(o)) {
    nb::list parts, keys;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    parts.append(nb::handle(t.dict));
    parts.append(type);
    parts.append(nb::none());
    while (PyDict_Next(o, &at, &key, &value)) {
      keys.append(nb::handle(key));
      parts.append(take_apart(value, tensors));
    }
    parts[2] = nb::tuple(keys);
    return nb::tuple(parts);
  }
  if (PyList_Check(o) || PyTuple_Check(o)) {
    nb::list parts;
    parts.append(nb::handle(PyList_Check(o) ? t.list : PyObject_HasAttrString(o, "_fields") ? t.named : t.tuple));
    parts.append(type);
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      parts.append(take_apart(PySequence_Fast_GET_ITEM(o, i), tensors));
    return nb::tuple(parts);
  }
  return nb::make_tuple(nb::handle(t.constant), type, nb::handle(o));
}

nb::object put_together(PyObject* tree, std::span<const Tensor> tensors, size_t* next) {
  if (tree == Py_None) return wrap_object(tensors[(*next)++]);
  const Tags& t = tags();
  PyObject* tag = PyTuple_GET_ITEM(tree, 0);
  PyObject* type = PyTuple_GET_ITEM(tree, 1);
  if (tag == t.constant) return nb::borrow(PyTuple_GET_ITEM(tree, 2));
  if (tag == t.dict) {
    nb::object keys = nb::borrow(PyTuple_GET_ITEM(tree, 2));
    nb::dict d;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys.ptr()); ++i)
      d[nb::handle(PyTuple_GET_ITEM(keys.ptr(), i))] = put_together(PyTuple_GET_ITEM(tree, i + 3), tensors, next);
    if (type == reinterpret_cast<PyObject*>(&PyDict_Type)) return d;
    // A dict with its own constructor, such as defaultdict, is copied as a plain one.
    PyObject* made = PyObject_CallOneArg(type, d.ptr());
    if (made) return nb::steal(made);
    PyErr_Clear();
    return d;
  }
  const Py_ssize_t n = PyTuple_GET_SIZE(tree) - 2;
  if (type == reinterpret_cast<PyObject*>(&PyList_Type)) {
    nb::object l = nb::steal(checked(PyList_New(n)));
    for (Py_ssize_t i = 0; i < n; ++i)
      PyList_SET_ITEM(l.ptr(), i, put_together(PyTuple_GET_ITEM(tree, i + 2), tensors, next).release().ptr());
    return l;
  }
  nb::object items = nb::steal(checked(PyTuple_New(n)));
  for (Py_ssize_t i = 0; i < n; ++i)
    PyTuple_SET_ITEM(items.ptr(), i, put_together(PyTuple_GET_ITEM(tree, i + 2), tensors, next).release().ptr());
  if (type == reinterpret_cast<PyObject*>(&PyTuple_Type)) return items;
  return nb::steal(
      checked(tag == t.named ? PyObject_CallObject(type, items.ptr()) : PyObject_CallOneArg(type, items.ptr())));
}

bool find_unhashable(PyObject* tree, const std::string& path, std::string* found) {
  if (tree == Py_None) return false;
  const Tags& t = tags();
  PyObject* tag = PyTuple_GET_ITEM(tree, 0);
  if (tag == t.constant) {
    PyObject* value = PyTuple_GET_ITEM(tree, 2);
    if (PyObject_Hash(value) != -1) return false;
    PyErr_Clear();
    *found = fmt::format("{}, a {}", path, Py_TYPE(value)->tp_name);
    return true;
  }
  const Py_ssize_t first = tag == t.dict ? 3 : 2;
  for (Py_ssize_t i = first; i < PyTuple_GET_SIZE(tree); ++i) {
    std::string place = fmt::format("[{}]", i - first);
    if (tag == t.dict)
      place =
          fmt::format("[{}]", nb::cast<std::string>(nb::repr(PyTuple_GET_ITEM(PyTuple_GET_ITEM(tree, 2), i - first))));
    if (find_unhashable(PyTuple_GET_ITEM(tree, i), path + place, found)) return true;
  }
  return false;
}

}  // namespace holon::python
