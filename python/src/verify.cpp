// Recording of what a program computes, and comparison of recordings: for `holon check`.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "args.h"
#include "bind.h"
#include "holon/base/error.h"
#include "holon/global/placement.h"
#include "holon/verify/digest.h"
#include "holon/verify/recorder.h"
#include "holon/verify/report.h"

namespace holon::python {

namespace {

std::unique_ptr<verify::Recorder>& recorder() {
  static std::unique_ptr<verify::Recorder> of_this_process;
  return of_this_process;
}

// The program ends as by sys.exit(0).
void end_program() {
  nb::gil_scoped_acquire gil;
  PyErr_SetObject(PyExc_SystemExit, nb::int_(0).ptr());
  raise_python();
}

}  // namespace

void bind_verify(nb::module_& m) {
  using namespace nb::literals;
  using verify::Report;
  m.def(
      "start_recording",
      [](const std::string& path, int64_t steps, uint64_t perturbation) {
        if (recorder()) fail_runtime("start_recording: this process records already.");
        recorder() = std::make_unique<verify::Recorder>(
            path, verify::RecorderOptions{.perturbation = perturbation, .steps = steps, .on_end = end_program});
      },
      "path"_a, "steps"_a = 0, "perturbation"_a = 0,
      "Records what this rank's thread computes from now on (holon check).");
  m.def("set_placements_on_one_rank", set_placements_on_one_rank, "on"_a,
        "Whether in a world of one rank every placement is that rank.");
  m.def(
      "record_state",
      [](const std::string& name, HandleOf<"Tensor"> t) {
        if (recorder()) recorder()->state(name, expect_tensor(t, "record_state", "the tensor"));
      },
      "name"_a, "tensor"_a, "A tensor of a module, at the end of a recorded program.");
  m.def(
      "record_batch",
      [](HandleOf<"Tensor"> t) {
        if (Observer* o = observer()) o->made("batch", expect_tensor(t, "record_batch", "the tensor"));
      },
      "tensor"_a, "A tensor of a batch, in a recorded program.");
  m.def(
      "is_recording", [] { return observer() != nullptr; }, "Whether what this thread computes is recorded.");
  m.def(
      "end_recording",
      [](const std::string& error) {
        if (recorder()) recorder()->end(error);
        recorder().reset();
      },
      "error"_a = "", "Ends the recording; error: what the program raised.");
  nb::class_<verify::Digest>(
      m, "Digest",
      "Of the gradients and updated parameters of this rank from its making on, bit by bit (holon "
      "explicit).")
      .def(nb::init<>())
      .def("value", &verify::Digest::value);
  nb::class_<Report>(m, "CheckReport", "What holon check has found under one layout.")
      .def_ro("compared", &Report::compared)
      .def_ro("notes", &Report::notes)
      .def_prop_ro("is_sound", &Report::is_sound)
      .def_prop_ro("kind", [](const Report& r) { return std::string(r.fault ? verify::name(r.fault->kind) : ""); })
      .def_prop_ro("site", [](const Report& r) { return r.fault ? r.fault->site : std::string(); })
      .def_prop_ro("op", [](const Report& r) { return r.fault ? r.fault->op : std::string(); })
      .def("__repr__", [](const Report& r) { return r.fault ? r.fault->str() : std::string("no fault"); });
  m.def(
      "check_recordings",
      [](const std::string& reference, const std::vector<std::string>& perturbed,
         const std::vector<std::string>& ranks) {
        const nb::gil_scoped_release release;
        return verify::check_recordings(reference, perturbed, ranks);
      },
      "reference"_a, "perturbed"_a, "ranks"_a, "Compares recordings of a program on one rank and under a layout.");
}

}  // namespace holon::python
