// What the families of shapes share.
#pragma once

#include "holon/registry/op_def.h"

namespace holon::ops {

// Bit a: the list of axes names axis a. Errors: one named twice, or out of range.
inline uint32_t axes_mask(const AttrReader& c, AttrName name, int ndim) {
  uint32_t mask = 0;
  for (int64_t d : c.ints(name)) {
    uint32_t bit = 1u << normalize_axis(d, ndim, c.op().public_name());
    if (mask & bit)
      fail_value("{}: axis {} appears twice in {}. Name each axis once.", c.op().public_name(), d, name.text());
    mask |= bit;
  }
  return mask;
}

// One factor for each axis of the output but those of the mask, the same axis in and out.
inline void keep_axes(RuleCall& r, uint32_t whole) {
  for (int a = 0; a < r.out[0].shape.size(); ++a) {
    if (whole >> a & 1) continue;
    int f = r.rule.factor();
    r.rule.in(0, a, f);
    r.rule.out(0, a, f);
  }
}

}  // namespace holon::ops
