// x[key] and x[key] = value: Python's keys as the core's; the rest is holon/ops/indexing.h.
#include "holon/ops/indexing.h"

#include "call.h"

namespace holon::python {

namespace {

using indexing::Index;

std::optional<int64_t> bound(PyObject* o) {
  if (o == Py_None) return std::nullopt;
  int64_t v;
  if (!to_int(o, &v)) fail_type("a slice of a tensor has ints, got {}.", describe(o));
  return v;
}

Index parse_item(PyObject* o) {
  int64_t at;
  if (o == Py_None) return indexing::None;
  if (o == Py_Ellipsis) return indexing::Ellipsis;
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    return indexing::Slice(bound(s->start), bound(s->stop), bound(s->step).value_or(1));
  }
  bool list = PyList_Check(o) || PyTuple_Check(o) || is_numpy_array(o) || PyRange_Check(o);
  // A bool is a mask without axes, also as a tensor; an integer tensor without axes is an int.
  bool mask = PyBool_Check(o) || (is_tensor(o) && tensor_of(o).dtype() == boolean);
  if (!mask && !list && to_int(o, &at)) return at;
  if (is_tensor(o)) return tensor_of(o);
  if (!list && !mask)
    fail(ErrorKind::kIndex, "an index must be an int, a slice, None, ..., a tensor or a list; got {}.", describe(o));
  Tensor t = tensor_from_data(PyRange_Check(o) ? nb::list(nb::handle(o)) : nb::borrow(o), nb::none(), nb::none(), false,
                              nb::none(), nb::none());
  if (t.numel() == 0 && is_floating(t.dtype())) t = OpCall("cast").in(t).set("dtype", int64).run();  // []
  return t;
}

// A list of what indexes an axis by itself represents the tuple of it, as in PyTorch: x[[rows, columns]].
bool stands_for_tuple(PyObject* key) {
  constexpr Py_ssize_t kMost = 32;  // a longer list is data
  if (!PyList_Check(key) || PyList_GET_SIZE(key) >= kMost) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(key); ++i) {
    PyObject* o = PyList_GET_ITEM(key, i);
    if (o == Py_None || o == Py_Ellipsis || PySlice_Check(o) || PyList_Check(o) || PyTuple_Check(o) || is_tensor(o) ||
        is_numpy_array(o) || PyRange_Check(o))
      return true;
  }
  return false;
}

std::vector<Index> parse_key(PyObject* key) {
  std::vector<Index> items;
  if (stands_for_tuple(key)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(key); ++i) items.push_back(parse_item(PyList_GET_ITEM(key, i)));
    return items;
  }
  if (!PyTuple_Check(key)) return {parse_item(key)};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) items.push_back(parse_item(PyTuple_GET_ITEM(key, i)));
  return items;
}

}  // namespace

PyObject* get_item(PyObject* self, PyObject* key) {
  return guarded([&] {
    PyObject* result = wrap(holon::index(tensor_of(self), parse_key(key)));
    note_window(self, result);
    return result;
  });
}

int set_item(PyObject* self, PyObject* key, PyObject* value) {
  return guarded(
      [&] {
        const Tensor& x = tensor_of(self);
        if (!value) fail_type("elements of a tensor cannot be deleted.");
        Tensor v = is_tensor(value) ? tensor_of(value)
                                    : tensor_from_data(value, nb::none(), nb::none(), false, nb::none(), nb::none());
        holon::index_put_(x, parse_key(key), v);
        return 0;
      },
      -1);
}

}  // namespace holon::python
