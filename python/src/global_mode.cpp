#include "global_mode.h"

#include "holon/base/context.h"

namespace holon::python {

GlobalMode& global_mode() { return Context::current().part<GlobalMode>(); }

Placement mode_placement(const Device* device) {
  const Placement& p = global_mode().placement;
  if (!device || device->type == p.device_type()) return p;
  return {name(device->type), p.hierarchy(), {p.ranks().begin(), p.ranks().end()}};
}

void apply_global_mode(const OpDef& op, Attrs* attrs) {
  if (attrs->has(op.placement_attr) || attrs->has(op.sbp_attr)) return;
  const bool has_device = op.device_attr >= 0 && attrs->has(op.device_attr);
  const Device device = has_device ? attrs->as_device(op.device_attr) : Device();
  Attrs all;
  for (int i = 0; i < static_cast<int>(attrs->size()); ++i) {
    if (i == op.placement_attr)
      all.push_placement(mode_placement(has_device ? &device : nullptr));
    else if (i == op.sbp_attr)
      all.push_nd_sbp(global_mode().sbp);
    else if (i == op.device_attr)
      all.push_none();
    else
      all.push_from(*attrs, i);
  }
  *attrs = all;
}

namespace {

ObjectOf<"tuple[bool, placement | None, tuple[_SbpValue, ...] | None]"> as_tuple(const GlobalMode& m) {
  if (!m.enabled) return nb::make_tuple(false, nb::none(), nb::none());
  return nb::make_tuple(true, m.placement, sbp_tuple(m.sbp));
}

}  // namespace

void bind_global_mode(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "global_mode", [] { return as_tuple(global_mode()); },
      "(enabled, placement, sbp) of the `with` block that this rank is in.");
  m.def(
      "exchange_global_mode",
      [](bool enabled, PlacementHandle placement, SbpHandle sbp) {
        GlobalMode next;
        next.enabled = enabled;
        if (enabled) {
          next.placement = expect_placement(placement, "global_mode");
          next.sbp = expect_nd_sbp(sbp, "global_mode");
          if (next.sbp.size() == 1 && next.placement.hierarchy().size() > 1)
            next.sbp = NdSbp::filled(next.placement.hierarchy().size(), next.sbp[0]);
          if (next.sbp.size() != next.placement.hierarchy().size())
            fail_layout("global_mode: {} sbps for a placement of {} axes; give one for each.", next.sbp.size(),
                        next.placement.hierarchy().size());
        }
        auto before = as_tuple(global_mode());
        global_mode() = next;
        return before;
      },
      "enabled"_a, "placement"_a = nb::none(), "sbp"_a = nb::none(),
      "Begins or ends a `with` block and returns (enabled, placement, sbp) of the previous one.");
}

}  // namespace holon::python
