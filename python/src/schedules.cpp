// Schedules of pipelines: tables, and schemes whose function is Python's.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/graph/schedule/picture.h"
#include "holon/graph/schedule/scheme.h"
#include "holon/graph/schedule/simulate.h"

namespace holon::python {

namespace {

using graph::BubbleCase;
using graph::Mapping;
using graph::Phase;
using graph::Schedule;
using graph::Scheme;
using graph::Task;
using graph::TaskLists;

constexpr const char* kListsAre = "A schedule's function returns a list for each device, of the tasks (stage, "
                                  "micro_batch, \"F\", \"B\" or \"W\") in the "
                                  "order in which it runs them.";

Task task_of(const std::string& scheme, size_t device, size_t place, nb::handle item) {
  std::string text;
  int stage = 0, micro_batch = 0;
  bool valid = nb::isinstance<nb::tuple>(item) && nb::len(item) == 3;
  valid = valid && nb::try_cast(item[0], stage) && nb::try_cast(item[1], micro_batch) && nb::try_cast(item[2], text);
  if (!valid || (text != "F" && text != "B" && text != "W"))
    fail_value("schedule {}: device {}: task {} of its list is {}. {}", scheme, device, place,
               nb::cast<std::string>(nb::repr(item)), kListsAre);
  return {stage, micro_batch, text == "F" ? Phase::kForward : text == "B" ? Phase::kBackward : Phase::kWeight};
}

nb::list sequence(const std::string& scheme, const std::string& of, nb::handle value) {
  if (!nb::isinstance<nb::list>(value) && !nb::isinstance<nb::tuple>(value))
    fail_value("schedule {}: {} is {}. {}", scheme, of, nb::cast<std::string>(nb::repr(value)), kListsAre);
  return nb::list(value);
}

TaskLists lists_of(const std::string& scheme, nb::handle returned) {
  TaskLists lists;
  for (nb::handle device : sequence(scheme, "what its function returns", returned)) {
    const size_t d = lists.size();
    lists.emplace_back();
    for (nb::handle item : sequence(scheme, fmt::format("the list of device {}", d), device))
      lists[d].push_back(task_of(scheme, d, lists[d].size(), item));
  }
  return lists;
}

nb::list lists_object(const Schedule& s) {
  nb::list lists;
  for (auto& list : s.tasks) {
    nb::list tasks;
    for (const Task& t : list) tasks.append(nb::make_tuple(t.stage, t.micro_batch, std::string(1, letter(t.phase))));
    lists.append(tasks);
  }
  return lists;
}

void register_schedule(const std::string& name, nb::object function, bool splits_backward, const std::string& doc,
                       nb::object bubble) {
  if (!PyCallable_Check(function.ptr()))
    fail_type("register_schedule: the function of '{}' is {}, which cannot be called.", name,
              nb::cast<std::string>(nb::repr(function)));
  Scheme scheme;
  scheme.name = name;
  scheme.doc = doc;
  scheme.splits_backward = splits_backward;
  scheme.lists = [name, own = SharedObject(std::move(function))](const Mapping& m) {
    nb::gil_scoped_acquire gil;  // a graph may be compiled without it
    return lists_of(name, own.get()(m.device_of_stage, m.micro_batches, m.training));
  };
  if (!bubble.is_none())
    scheme.bubble = [name, own = SharedObject(std::move(bubble))](const BubbleCase& c) {
      nb::gil_scoped_acquire gil;
      nb::object share = own.get()(c.devices, c.micro_batches, c.chunks_per_device, c.forward, c.backward, c.weight);
      double value = 0;
      if (!nb::try_cast(share, value))
        fail_type("schedule {}: its bubble is {}; it must be a number.", name, nb::cast<std::string>(nb::repr(share)));
      return value;
    };
  register_scheme(std::move(scheme));
}

graph::Simulation played(const Schedule& s, double forward, double backward, double weight, double send) {
  return simulate(s, graph::Costs::equal(s.stages, forward, backward, weight, send));
}

}  // namespace

void bind_schedules(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Schedule>(m, "Schedule", "Which tasks each device of a pipeline runs, in order.")
      .def_ro("name", &Schedule::name)
      .def_ro("micro_batches", &Schedule::micro_batches)
      .def_ro("training", &Schedule::training)
      .def_ro("splits_backward", &Schedule::splits_backward, "Whether each B has a W, the gradients of the weights.")
      .def_ro("device_of_stage", &Schedule::device_of_stage)
      .def_prop_ro("tasks", lists_object, "For each device a list of (stage, micro_batch, \"F\", \"B\" or \"W\").")
      .def(
          "bubble",
          [](const Schedule& s, double forward, double backward, double weight, double send) {
            return played(s, forward, backward, weight, send).bubble;
          },
          "forward"_a = 1, "backward"_a = 1, "weight"_a = 1, "send"_a = 0,
          "The idle share of all devices' time, when the tasks of each stage take so long.")
      .def(
          "peak_in_flight", [](const Schedule& s) { return played(s, 1, 1, 1, 0).peak_on_device; },
          "For each device, the most activations that it holds at once: of a stage and a micro-batch each.")
      .def(
          "svg",
          [](const Schedule& s, double forward, double backward, double weight, double send) {
            return schedule_svg(s, played(s, forward, backward, weight, send));
          },
          "forward"_a = 1, "backward"_a = 1, "weight"_a = 1, "send"_a = 0,
          "A picture: time to the right, a row a device.")
      .def("__str__", [](const Schedule& s) { return str(s); })
      .def("__repr__", [](const Schedule& s) {
        return fmt::format("Schedule({}: {} stages on {} devices, {} micro-batches)", s.name, s.stages, s.devices,
                           s.micro_batches);
      });
  m.def("register_schedule", register_schedule, "name"_a, "function"_a, "splits_backward"_a, "doc"_a,
        "bubble"_a.none());
  m.def(
      "unregister_schedule", [](const std::string& name) { graph::unregister_scheme(name); }, "name"_a);
  m.def("schedules", [] {
    nb::dict all;
    for (auto& scheme : graph::schemes()) all[scheme->name.c_str()] = scheme->doc;
    return all;
  });
  m.def(
      "is_schedule",
      [](const std::string& name) {
        for (auto& scheme : graph::schemes())
          if (scheme->name == name || std::count(scheme->aliases.begin(), scheme->aliases.end(), name)) return true;
        return false;
      },
      "name"_a, "Whether a schedule has this name, or it is another name of one.");
  m.def(
      "make_schedule",
      [](const std::string& name, const std::vector<int>& device_of_stage, int micro_batches, bool training) {
        return graph::make_schedule(name, device_of_stage, micro_batches, training);
      },
      "name"_a, "device_of_stage"_a, "micro_batches"_a, "training"_a);
  m.def("bubble_formula", &graph::bubble_formula, "name"_a, "devices"_a, "micro_batches"_a, "chunks_per_device"_a,
        "forward"_a, "backward"_a, "weight"_a);
}

}  // namespace holon::python
