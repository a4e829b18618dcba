// Contracts: the program's communication, recorded in a file or held to one.
#include "holon/contract/contract.h"

#include <optional>
#include <string>
#include <utility>

#include "args.h"
#include "holon/boxing/planner.h"
#include "holon/graph/virtual_rank.h"

namespace holon::python {

namespace {

// This process as one rank of a world that is not there, for contracts without values.
class VirtualWorld {
 public:
  VirtualWorld(int ranks, int ranks_per_host, const std::string& file)
      : rank_(std::in_place, 0, ranks, ranks_per_host), guard_(std::in_place, file, contract::Mode::kRecordAlone) {}
  void end(bool failed) {
    guard_->end(failed);
    guard_.reset();
    rank_.reset();
  }

 private:
  std::optional<graph::VirtualRank> rank_;
  std::optional<contract::Guard> guard_;
};

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
  nb::class_<VirtualWorld>(
      m, "VirtualWorld",
      "Records a contract on one process, which is a rank of `ranks` without data (`holon contract "
      "record --no-values`).")
      .def(nb::init<int, int, const std::string&>(), "ranks"_a, "ranks_per_host"_a, "file"_a)
      .def("end", &VirtualWorld::end, "failed"_a);
  m.def("contract_end_step", contract::end_step);
  m.def("contract_abandon", contract::abandon);
  m.def("planner_calls", boxing::planner_calls,
        "How often this rank has asked boxing's planner for a plan, whether the answer was cached or not.");
}

}  // namespace holon::python
