// What boxing does and has done: explanations, the policy, counters.
#include "args.h"
#include "holon/base/fmt.h"
#include "holon/boxing/events.h"
#include "holon/boxing/explain.h"
#include "holon/tensor/visualize.h"

namespace holon::python {

namespace {

const char* policy_name(boxing::Policy p) {
  return p == boxing::Policy::kSilent ? "silent" : p == boxing::Policy::kWarn ? "warn" : "raise";
}

struct PolicyChange {
  boxing::Policy before;
};
struct ParameterPolicyChange {
  boxing::ParameterPolicy before;
};

std::string stretch_text(const Interval& i) {
  return i.size == 1 ? std::to_string(i.begin) : fmt::format("{}:{}", i.begin, i.end());
}

nb::typed<nb::dict, nb::str, nb::any> picture_dict(const Tensor& x) {
  Picture p = picture(x);
  auto stretches = [](const std::vector<Interval>& pieces, bool named) {
    nb::list l;
    for (auto& i : pieces) l.append(named ? stretch_text(i) : std::string());
    return l;
  };
  nb::list planes;
  for (auto& plane : p.planes) {
    nb::list cells;
    for (auto& c : plane.cells) {
      nb::list copies;
      for (auto& ranks : c.copies) {
        nb::list l;
        for (int r : ranks) l.append(r);
        copies.append(l);
      }
      cells.append(nb::make_tuple(c.text(), copies, c.here));
    }
    nb::dict d;
    d["title"] = plane.title;
    d["rows"] = stretches(plane.rows, p.rows);
    d["columns"] = stretches(plane.columns, p.columns);
    d["cells"] = cells;
    planes.append(d);
  }
  nb::list notes;
  for (auto& n : p.notes) notes.append(n);
  nb::dict d;
  d["title"] = p.title;
  d["planes"] = planes;
  d["notes"] = notes;
  d["text"] = p.text();
  d["svg"] = p.svg();
  return d;
}

boxing::Explanation explanation(const Tensor& x, nb::handle placement, nb::handle sbp) {
  if (x.is_local())
    fail_runtime("explain: the tensor is local; boxing is between global ones. Use to_global(placement, sbp) first.");
  Placement p = placement.is_none() ? x.placement() : expect_placement(placement, "explain");
  NdSbp s = sbp.is_none() ? x.nd_sbp() : expect_nd_sbp(sbp, "explain");
  check_nd_sbp(x.shape(), p, s, "explain");
  return boxing::explanation(x.spec(), intern_spec(p, s), x.shape(), x.dtype());
}

nb::object spec_text(const GlobalSpec* s) { return nb::str(s->str().c_str()); }

}  // namespace

void bind_boxing(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<boxing::Plan>(m, "Plan", "The steps from one layout of a tensor to another.")
      .def(
          "pictures",
          [](const boxing::Plan& p) -> nb::typed<nb::list, nb::str> {
            nb::list l;
            l.append(picture(p.shape(), p.dtype(), p.from()).svg());
            for (auto& step : p.steps()) l.append(picture(p.shape(), p.dtype(), step.to).svg());
            return l;
          },
          "Which rank holds what before the first step and after each, as SVG.");
  m.def(
      "explain",
      [](const Tensor& x, PlacementHandle placement, SbpHandle sbp) { return explanation(x, placement, sbp).text; },
      "x"_a, "placement"_a = nb::none(), "sbp"_a = nb::none(),
      "The steps that x.to_global(placement, sbp) takes, with bytes per rank and per link, memory and predicted time. "
      "Moves no data.");
  m.def(
      "explanation",
      [](const Tensor& x, PlacementHandle placement, SbpHandle sbp) -> nb::typed<nb::tuple, nb::str, boxing::Plan> {
        auto e = explanation(x, placement, sbp);
        return nb::make_tuple(e.text, e.plan);
      },
      "x"_a, "placement"_a = nb::none(), "sbp"_a = nb::none(), "explain's text, and the plan that it describes.");
  m.def("picture", picture_dict, "x"_a,
        "Who holds which part of x: title, planes, notes, text, svg. Communicates nothing.");
  nb::class_<PolicyChange>(m, "boxing_policy",
                           "What happens on this rank when an op inserts boxing implicitly: \"silent\", \"warn\" or "
                           "\"raise\". Applies from the call on; as a `with` block, until its end.")
      .def(
          "__init__",
          [](PolicyChange* p, const std::string& policy) {
            new (p) PolicyChange{boxing::boxing_policy()};
            boxing::set_boxing_policy(boxing::parse_policy(policy));
          },
          "policy"_a)
      .def(
          "__enter__", [](nb::object self) -> ObjectOf<"boxing_policy"> { return self; })
      .def(
          "__exit__", [](PolicyChange& p, nb::args) { boxing::set_boxing_policy(p.before); }, "args"_a);
  nb::class_<ParameterPolicyChange>(
      m, "parameter_policy",
      "When ops on this rank redistribute split parameters implicitly: \"keep\", only if no signature avoids it "
      "(reported once for each line), or \"gather\", whenever it is cheapest. Applies from the call on; as a `with` "
      "block, until its end. A graph uses the policy under which it is compiled.")
      .def(
          "__init__",
          [](ParameterPolicyChange* p, const std::string& policy) {
            new (p) ParameterPolicyChange{boxing::parameter_policy()};
            boxing::set_parameter_policy(boxing::parse_parameter_policy(policy));
          },
          "policy"_a)
      .def(
          "__enter__", [](nb::object self) -> ObjectOf<"parameter_policy"> { return self; })
      .def(
          "__exit__", [](ParameterPolicyChange& p, nb::args) { boxing::set_parameter_policy(p.before); }, "args"_a);
  m.def(
      "get_boxing_policy", [] { return policy_name(boxing::boxing_policy()); }, "This rank's boxing policy.");
  m.def(
      "boxing_counters",
      [] {
        auto c = boxing::boxing_counters();
        nb::dict d;
        d["events"] = c.events;
        d["moves"] = c.moves;
        d["bytes"] = c.bytes;
        d["parameters"] = c.parameters;
        return nb::typed<nb::dict, nb::str, int>(d);
      },
      "Boxing that ops have inserted on this rank: events, moves, bytes, and how many of the moves were of "
      "parameters.");
  m.def("reset_boxing_counters", [] { boxing::reset_boxing_counters(); });
  m.def(
      "boxing_events",
      [] {
        nb::list l;
        for (auto& e : boxing::recent_events()) {
          nb::dict d;
          d["op"] = e.op;
          d["from"] = spec_text(e.from);
          d["to"] = spec_text(e.to);
          d["shape"] = size_object(e.shape);
          d["dtype"] = dtype_object(e.dtype);
          d["bytes"] = e.bytes;
          d["parameter"] = e.parameter;
          d["inside"] = e.inside;
          d["line"] = e.site;
          l.append(d);
        }
        return nb::typed<nb::list, nb::typed<nb::dict, nb::str, nb::any>>(l);
      },
      "The last boxing events of this rank, oldest first.");
}

}  // namespace holon::python
