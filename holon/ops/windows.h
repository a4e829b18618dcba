// Attributes of ops that slide a window over the last axes.
#pragma once

#include <string_view>

#include "holon/base/error.h"
#include "holon/registry/op_def.h"

namespace holon::ops {

// Sums and products of two sizes of windows fit into 64 bits.
inline constexpr int64_t kMostOfWindow = (int64_t{1} << 31) - 1;

// The integers of an attribute for n axes, which may be given as one number for all. Errors: another count, a number
// below `least` or beyond kMostOfWindow (ValueError).
inline Dims per_axis(const BodyCall& c, AttrName attr, int n, int64_t least) {
  Dims v(c.ints(attr));
  if (v.size() == 1 && n > 1) v = Dims::filled(n, v[0]);
  bool ok = v.size() == n;
  for (int64_t x : v) ok &= x >= least && x <= kMostOfWindow;
  if (!ok)
    fail_value("{}: {} must be one number or {}, each from {} to {}; found {}.", c.op().name(), attr.text(), n, least,
               kMostOfWindow, Dims(c.ints(attr)));
  return v;
}

}  // namespace holon::ops
