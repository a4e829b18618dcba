// placement and sbp.
#include <nanobind/operators.h>

#include <cstring>

#include "args.h"
#include "holon/base/context.h"
#include "holon/base/index.h"
#include "holon/tensor/print.h"

namespace holon::python {

namespace {

// Ranks as nested lists, tuples, a range, a numpy array or one int: flattened, with the sizes of the grid.
void read_ranks(PyObject* o, size_t depth, Dims* hierarchy, std::vector<int64_t>* ranks) {
  int64_t rank;
  if (!PyList_Check(o) && !PyTuple_Check(o) && to_int(o, &rank)) {
    if (to_size(hierarchy->size()) != depth)
      fail_value("placement: found ranks={} where a row of ranks is expected; give lists of the same depth.", rank);
    ranks->push_back(rank);
    return;
  }
  if (PyUnicode_Check(o) || PyDict_Check(o) || is_tensor(o) || !PySequence_Check(o))
    fail_type("placement: ranks must be an int or (nested) lists of int, got {}.", describe(o));
  nb::object items = nb::steal(checked(PySequence_Fast(o, "placement: ranks must be lists of int")));
  int64_t n = PySequence_Fast_GET_SIZE(items.ptr());
  if (to_size(hierarchy->size()) == depth && ranks->empty()) {
    hierarchy->push_back(n);
  } else if (to_size(hierarchy->size()) <= depth || (*hierarchy)[static_cast<int>(depth)] != n) {
    fail_value("placement: the rows in ranks differ in length; all rows of a grid must have the same.");
  }
  for (int64_t i = 0; i < n; ++i) read_ranks(PySequence_Fast_GET_ITEM(items.ptr(), i), depth + 1, hierarchy, ranks);
}

// Devices by host: {0: [0, 1], 1: [0, 1]}. The ranks of a host follow each other.
nb::list ranks_of_hosts(nb::dict hosts) {
  nb::list ranks;
  const int per_host = Context::current().local_world_size();
  for (auto [host, devices] : hosts) {
    int64_t h, one;
    IntList list;
    if (!to_int(host.ptr(), &h) || h < 0)
      fail_type("placement: a host must be a number that is at least 0, got {}.", describe(host.ptr()));
    nb::object items = PyRange_Check(devices.ptr()) ? nb::object(nb::list(devices)) : nb::borrow(devices);
    if (to_int(items.ptr(), &one))
      list.push_back(one);
    else if (!to_ints(items.ptr(), &list))
      fail_type("placement: the devices of host {} must be a list of int, got {}.", h, describe(items.ptr()));
    for (int64_t d : list) {
      if (d < 0 || d >= per_host)
        fail_value("placement: host {} has no device {}; it has {} of them, one for each rank.", h, d, per_host);
      ranks.append(h * per_host + d);
    }
  }
  return ranks;
}

Placement make_placement(nb::handle type, nb::handle given, nb::handle shape) {
  if (!PyUnicode_Check(type.ptr()))
    fail_type(
        "placement: type must be \"cpu\" or \"cuda\", got {}. Example: holon.placement(type=\"cpu\", ranks=[0, 1]).",
        describe(type.ptr()));
  Dims hierarchy;
  std::vector<int64_t> ranks;
  nb::object o = nb::borrow(given);
  if (is_numpy_array(o.ptr())) o = o.attr("tolist")();
  if (PyDict_Check(o.ptr())) o = ranks_of_hosts(nb::borrow<nb::dict>(o));
  read_ranks(o.ptr(), 0, &hierarchy, &ranks);
  if (!shape.is_none()) {
    IntList sizes;
    if (!to_ints(shape.ptr(), &sizes))
      fail_type("placement: hierarchy must be a list of int, got {}.", describe(shape.ptr()));
    hierarchy = Dims(std::span<const int64_t>(sizes));
  }
  if (hierarchy.empty()) hierarchy.push_back(1);
  return {nb::cast<std::string>(type), hierarchy, std::move(ranks)};
}

nb::object nested_ranks(const Placement& p, int axis, size_t* next) {
  if (axis == p.hierarchy().size()) return nb::int_(p.ranks()[(*next)++]);
  nb::list row;
  for (int64_t i = 0; i < p.hierarchy()[axis]; ++i) row.append(nested_ranks(p, axis + 1, next));
  return row;
}

nb::object rank_lists(const Placement& p) {
  size_t next = 0;
  return nested_ranks(p, 0, &next);
}

Sbp split(HandleOf<"int"> dim, HandleOf<"int"> axis) {
  if (dim.is_none() == axis.is_none())
    fail_type("sbp.split: takes one tensor axis, as in sbp.split(0); got {}.", dim.is_none() ? "none" : "two");
  nb::handle given = dim.is_none() ? axis : dim;
  int64_t value;
  if (!to_int(given.ptr(), &value)) fail_type("sbp.split: dim must be int, got {}.", describe(given.ptr()));
  if (value >= kMaxAxes)
    fail_runtime("Split axis out of range (expected to be in range of [0, {}), but got {}!)", kMaxAxes, value);
  return sbp::split(static_cast<int>(value));
}

Sbp parse_sbp(std::string_view text) {
  if (text == "B") return sbp::broadcast();
  if (text == "P") return sbp::partial_sum();
  if (text.size() == 4 && text.starts_with("S(") && text[2] >= '0' && text[2] <= '9' && text[3] == ')')
    return sbp::split(text[2] - '0');
  fail_value("parse_sbp: \"{}\" is none of \"S(0)\" (with any axis), \"B\" and \"P\".", text);
}

}  // namespace

nb::object sbp_tuple(const NdSbp& list) {
  nb::object tuple = nb::steal(checked(PyTuple_New(list.size())));
  for (int i = 0; i < list.size(); ++i) PyTuple_SET_ITEM(tuple.ptr(), i, nb::cast(list[i]).release().ptr());
  return tuple;
}

void bind_global(nb::module_& m) {
  nb::class_<Placement>(m, "placement",
                        "The ranks that hold a global tensor: placement(type=\"cpu\", ranks=[[0, 1], [2, 3]]).")
      .def(
          "__init__",
          [](Placement* p, HandleOf<"str"> type, nb::handle ranks, HandleOf<"Sequence[int]"> hierarchy) {
            new (p) Placement(make_placement(type, ranks, hierarchy));
          },
          nb::arg("type"), nb::arg("ranks"), nb::arg("hierarchy") = nb::none(),
          "hierarchy: the shape of the grid that the ranks form, row by row; nested lists of ranks imply it.")
      .def_static(
          "all", [](const std::string& type) { return Placement::all(type); }, nb::arg("type"),
          "All ranks of the world.")
      .def("__repr__", [](const Placement& p) { return to_string(p); })
      .def(
          "__eq__",
          [](const Placement& p, nb::handle o) {
            Placement other;
            return nb::try_cast(o, other) && p == other;
          },
          nb::arg("other").none())
      .def("__hash__",
           [](const Placement& p) { return static_cast<Py_ssize_t>(reinterpret_cast<uintptr_t>(p.id()) >> 4); })
      .def("__reduce__", [](const Placement& p) { return pickled("placement", name(p.device_type()), rank_lists(p)); })
      .def_prop_ro("type", [](const Placement& p) { return name(p.device_type()); })
      .def_prop_ro(
          "ranks", [](const Placement& p) -> ObjectOf<"numpy.ndarray"> {
            return nb::module_::import_("numpy").attr("array")(rank_lists(p));
          })
      .def_prop_ro("hierarchy", [](const Placement& p) { return size_object(p.hierarchy()); })
      .def_prop_ro("device_type", [](const Placement& p) { return name(p.device_type()); })
      .def("index_of", &Placement::index_of, nb::arg("rank"), "The index of a rank among the ranks; -1 outside.");

  nb::module_ s = m.def_submodule("sbp", "How a tensor is distributed along an axis of a placement.");
  nb::class_<Sbp>(s, "sbp", "split(dim), broadcast or partial_sum.")
      .def("__repr__", [](Sbp v) { return to_string(v); })
      .def(
          "__eq__",
          [](Sbp v, nb::handle o) {
            Sbp other;
            return nb::try_cast(o, other) && v == other;
          },
          nb::arg("other").none())
      .def("__hash__", [](Sbp v) { return static_cast<int>(v.kind) << 8 | (v.is_split() ? v.axis : 0); })
      .def("__call__",
           [](Sbp v) {
             if (v.is_split()) fail_type("{} is a value and cannot be called.", to_string(v));
             return v;
           })
      .def("__reduce__", [](Sbp v) { return pickled("parse_sbp", v.str()); })
      .def_prop_ro("is_split", [](Sbp v) { return v.is_split(); })
      .def_prop_ro("is_broadcast", [](Sbp v) { return v.is_broadcast(); })
      .def_prop_ro("is_partial_sum", [](Sbp v) { return v.is_partial(); })
      .def_prop_ro(
          "dim", [](Sbp v) -> ObjectOf<"int | None"> {
            return v.is_split() ? nb::object(nb::int_(v.axis)) : nb::object(nb::none());
          });
  s.def("split", split, nb::arg("dim") = nb::none(), nb::kw_only(), nb::arg("axis") = nb::none(),
        "The tensor is split along its axis dim.");
  m.def("parse_sbp", parse_sbp, nb::arg("text"), "The sbp of its short notation: S(0), B or P.");
  s.attr("broadcast") = nb::cast(sbp::broadcast());
  s.attr("partial_sum") = nb::cast(sbp::partial_sum());
}

}  // namespace holon::python
