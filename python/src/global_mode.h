// A region in which tensors are made global where the call does not say so (utils.global_view.global_mode).
#pragma once

#include "args.h"
#include "holon/registry/attrs.h"

namespace holon::python {

// Of the rank, like the gradient mode.
struct GlobalMode {
  bool enabled = false;
  Placement placement;
  NdSbp sbp;
};
GlobalMode& global_mode();

// The mode's placement, on the device type of a call that names one.
Placement mode_placement(const Device* device);

// Gives a call that makes a tensor from nothing the mode's placement and sbp, in the place of a device. Pre: the op has
// both.
void apply_global_mode(const OpDef& op, Attrs* attrs);

}  // namespace holon::python
