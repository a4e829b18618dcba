// Sources of random numbers.
#include <random>

#include "call.h"

namespace holon::python {

void bind_random(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Generator>(m, "Generator",
                        "An independent source of random numbers: random ops accept it as `generator`. Ranks that seed "
                        "it alike draw the same numbers.")
      .def(
          "__init__",
          [](Generator* self, nb::handle device) {
            if (!device.is_none()) expect_device(device, "Generator");
            new (self) Generator;
          },
          "device"_a = nb::none())
      .def(
          "manual_seed", [](nb::object self, HandleOf<"int"> seed) -> ObjectOf<"Generator"> {
            int64_t v;
            if (!to_int(seed.ptr(), &v)) fail_type("manual_seed: seed must be int, got {}.", describe(seed.ptr()));
            *nb::inst_ptr<Generator>(self) = {static_cast<uint64_t>(v), 0};
            return self;
          },
          "seed"_a, "Restarts from a seed and returns the generator.")
      .def(
          "seed",
          [](Generator& self) {
            std::random_device source;
            self = {static_cast<uint64_t>(source()) << 32 | source(), 0};
            return self.seed;
          },
          "Restarts from an unpredictable seed and returns it.")
      .def(
          "initial_seed", [](const Generator& self) { return self.seed; }, "The seed.")
      .def(
          "get_state",
          [](const Generator& self) { return nb::typed<nb::tuple, int, int>(nb::make_tuple(self.seed, self.counter)); },
          "(seed, number of the next draw)")
      .def(
          "set_state",
          [](Generator& self, nb::typed<nb::tuple, int, int> state) {
            if (state.size() != 2)
              fail_value("set_state: takes what get_state() returned, got {} items.", state.size());
            self = {nb::cast<uint64_t>(state[0]), nb::cast<int64_t>(state[1])};
          },
          "state"_a, "Restores what get_state() returned.")
      .def_prop_ro("device", [](const Generator&) { return Device{}; });
}

}  // namespace holon::python
