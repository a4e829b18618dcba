// KeyMap: rules from Python, and state dicts as dicts.
#include "holon/checkpoint/core/key_map.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "args.h"
#include "bind.h"
#include "holon/base/error.h"

namespace holon::python {

using checkpoint::KeyMap;
using checkpoint::KeyRule;

void bind_key_map(nb::module_& m);

namespace {

constexpr const char* kKinds[] = {"same", "transpose", "join", "split", "stack", "unstack"};

KeyRule::Kind kind_of(const std::string& name) {
  for (int k = 0; k < 6; ++k)
    if (name == kKinds[k]) return static_cast<KeyRule::Kind>(k);
  fail_value("KeyMap: the kind of a rule is '{}'. Give same, transpose, join, split, stack or unstack.", name);
}

}  // namespace

void bind_key_map(nb::module_& m) {
  using namespace nb::literals;
  using Names = std::vector<std::string>;
  // to, from, kind, axis, other, parts
  using Rule = std::tuple<Names, Names, std::string, int, int, std::vector<int64_t>>;
  nb::class_<KeyMap>(m, "KeyMap", "Names and layouts of one state dict as those of another.")
      .def(
          "__init__",
          [](KeyMap* self, const std::vector<Rule>& rules) {
            std::vector<KeyRule> all;
            for (auto& [to, from, kind, axis, other, parts] : rules)
              all.push_back({to, from, {kind_of(kind), axis, other, parts}});
            new (self) KeyMap(std::move(all));
          },
          "rules"_a)
      .def(
          "apply",
          [](const KeyMap& self, nb::dict state) {
            nn::StateDict before, after;
            for (auto [key, value] : state) {
              if (!PyUnicode_Check(key.ptr()) || !is_tensor(value.ptr()))
                fail_type("KeyMap.apply: a state dict has names and tensors; it has {} and {}.", describe(key.ptr()),
                          describe(value.ptr()));
              before.emplace_back(nb::cast<std::string>(key), tensor_of(value.ptr()));
            }
            {
              nb::gil_scoped_release released;
              after = self.apply(before);
            }
            nb::dict out;
            for (auto& [name, tensor] : after) out[name.c_str()] = wrap_object(tensor);
            return out;
          },
          "state"_a, "The state dict under the other names.")
      .def("inverse", &KeyMap::inverse, "The map that leads back.");
}

}  // namespace holon::python
