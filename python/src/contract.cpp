// Contracts: the program's communication, recorded in a file or held to one.
#include "holon/contract/contract.h"

#include "args.h"
#include "holon/boxing/planner.h"

namespace holon::python {

namespace {

// In force from the call on; as a `with` block, until its end.
class Contract {
 public:
  Contract(const std::string& file, bool record)
      : guard_(file, record ? contract::Mode::kRecord : contract::Mode::kReplay) {}
  ~Contract() { guard_.keep(); }
  void exit(nb::handle exception) { guard_.end(!exception.is_none()); }

 private:
  contract::Guard guard_;
};

}  // namespace

void bind_contract(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Contract>(
      m, "contract",
      "Holds the program to a file of its boxings (docs/guides/contract.md), or writes one if record. Applies from the "
      "call on; as a `with` block, until its end. Collective: all ranks. RuntimeError: a boxing that the file does not "
      "have, one too many in a step or one too few, naming the line of the program and what it costs.")
      .def(nb::init<const std::string&, bool>(), "file"_a, "record"_a = false)
      .def(
          "__enter__", [](nb::object self) -> ObjectOf<"contract"> { return self; })
      .def(
          "__exit__", [](Contract& c, nb::args args) { c.exit(args[0]); }, "args"_a)
      .def_static("end_step", contract::end_step,
                  "A step of the program ends here. Optimizers do this themselves, after their updates.");
  m.def("contract_end_step", contract::end_step);
  m.def("contract_abandon", contract::abandon);
  m.def("planner_calls", boxing::planner_calls,
        "How often this rank has asked boxing's planner for a plan, whether the answer was cached or not.");
}

}  // namespace holon::python
