// Recipes of float8 training.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "args.h"
#include "holon/base/error.h"
#include "holon/optim/delayed_scaling.h"

namespace holon::python {

namespace {

optim::DelayedScaling::Named named_tensors(nb::handle dict, const char* call) {
  if (!PyDict_Check(dict.ptr())) fail_type("{}: expected a dict of tensors, got {}.", call, describe(dict.ptr()));
  optim::DelayedScaling::Named out;
  for (auto [name, tensor] : nb::borrow<nb::dict>(dict)) {
    if (!PyUnicode_Check(name.ptr())) fail_type("{}: a name is {}, not a str.", call, describe(name.ptr()));
    out.emplace_back(nb::cast<std::string>(name), expect_tensor(tensor, call, "a value of the dict"));
  }
  return out;
}

Float8Role role_of(const std::string& name) {
  if (name == "input") return Float8Role::kInput;
  if (name == "weight") return Float8Role::kWeight;
  if (name == "gradient") return Float8Role::kGradient;
  fail_value("DelayedScaling.scale: the role is '{}'; it must be input, weight or gradient.", name);
}

}  // namespace

void bind_float8(nb::module_& m) {
  using namespace nb::literals;
  using optim::DelayedScaling;
  nb::class_<Float8Recipe>(m, "Float8Recipe", "What products in float8 are scaled by.");
  nb::class_<DelayedScaling, Float8Recipe>(m, "DelayedScaling", "Scales by the largest values of earlier steps.")
      .def(
          "__init__",
          [](DelayedScaling* self, HandleOf<"dict[str, Tensor]"> parameters, int margin, int64_t amax_history_len,
             const std::string& amax_compute_algo) {
            optim::DelayedScalingOptions o{margin, amax_history_len};
            if (amax_compute_algo == "most_recent")
              o.amax_compute_algo = optim::DelayedScalingOptions::AmaxCompute::kMostRecent;
            else if (amax_compute_algo != "max")
              fail_value("DelayedScaling: amax_compute_algo is '{}'; it must be max or most_recent.",
                         amax_compute_algo);
            new (self) DelayedScaling(named_tensors(parameters, "DelayedScaling"), o);
          },
          "parameters"_a, "margin"_a, "amax_history_len"_a, "amax_compute_algo"_a)
      .def(
          "update",
          [](DelayedScaling& s) {
            nb::gil_scoped_release released;
            s.update();
          },
          "Ends a step: the next one's scales are from the largest values of this one and those before it. Collective "
          "where parameters are global.")
      .def(
          "scale",
          [](const DelayedScaling& s, const std::string& parameter, const std::string& role) {
            return s.scale(parameter, role_of(role));
          },
          "parameter"_a, "role"_a,
          "What the next step multiplies by: the other factor (role \"input\"), the parameter (\"weight\"), or the "
          "gradients of results (\"gradient\").")
      .def(
          "state_dict", [](const DelayedScaling& s) -> ObjectOf<"dict[str, Tensor]"> {
            nb::dict out;
            for (auto& [name, t] : s.state_dict()) out[name.c_str()] = wrap_object(Tensor(t));
            return out;
          },
          "By parameter: \"fc.weight.scale\" [3] and \"fc.weight.amax_history\" [3, amax_history_len].")
      .def(
          "load_state_dict",
          [](DelayedScaling& s, HandleOf<"dict[str, Tensor]"> state) {
            const auto named = named_tensors(state, "DelayedScaling.load_state_dict");
            nb::gil_scoped_release released;
            s.load_state_dict(named);
          },
          "state_dict"_a, "Takes what state_dict() returned. Collective where tensors are global.");
}

}  // namespace holon::python
