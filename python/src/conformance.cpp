// Checks of users' own ops and functions.
#include "holon/conformance/check.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "args.h"
#include "bind.h"
#include "holon/base/error.h"

namespace holon::python {

namespace {

conformance::Report check_op(const std::string& name, const std::vector<std::string>& samples) {
  std::vector<conformance::Sample> list;
  for (auto& text : samples) list.push_back(conformance::parse_sample(text));
  const nb::gil_scoped_release release;
  if (const OpDef* op = samples.empty() ? try_find_op(name) : nullptr) list = conformance::draw_samples(*op);
  return conformance::check_op(name, list);
}

conformance::Report check_function(const std::string& name, const std::string& inputs,
                                   ObjectOf<"Callable[..., Tensor | Sequence[Tensor]]"> function) {
  if (!PyCallable_Check(function.ptr()))
    fail_type("check_function: takes a function of tensors, got {}.", describe(function.ptr()));
  const conformance::Subject subject(
      name, conformance::parse_inputs(inputs), [&name, f = SharedObject(std::move(function))](const TensorVec& in) {
        nb::gil_scoped_acquire gil;
        nb::list arguments;
        for (auto& t : in) arguments.append(t.defined() ? wrap_object(t) : nb::none());
        const nb::object result = f.get()(*nb::tuple(arguments));
        TensorVec out;
        if (is_tensor(result.ptr())) {
          out.push_back(expect_tensor(result, name.c_str(), "the result"));
          return out;
        }
        for (nb::handle item : nb::steal(checked(PySequence_Fast(result.ptr(), "a list of tensors was expected"))))
          out.push_back(expect_tensor(item, name.c_str(), "a result"));
        return out;
      });
  const nb::gil_scoped_release release;
  return conformance::check_function(subject);
}

}  // namespace

void bind_conformance(nb::module_& m) {
  using namespace nb::literals;
  using conformance::Report;
  nb::class_<Report>(m, "ConformanceReport",
                     "What check_op and check_function have found: str() has a line for each fault and note.")
      .def_ro("name", &Report::name)
      .def_ro("samples", &Report::samples)
      .def_ro("signatures", &Report::signatures)
      .def_ro("gradients", &Report::gradients)
      .def_ro("worlds", &Report::worlds)
      .def_ro("faults", &Report::faults)
      .def_ro("notes", &Report::notes)
      .def("__repr__", &Report::str);
  m.def("check_op", check_op, "name"_a, "samples"_a);
  m.def("check_function", check_function, "name"_a, "inputs"_a, "function"_a);
}

}  // namespace holon::python
