// Dtypes and masks.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("cast", {x({5, 3})}, {{"dtype", float64}});
  add("cast", {x({5, 3})}, {{"dtype", int64}});
  add("cast", {ints({5, 3}, -4, 4)}, {{"dtype", float32}});
  add("cast", {x({5, 3})}, {{"dtype", boolean}});
  add("where", {mask({5, 3}), x({5, 3}), x({5, 3})});
  add("where", {mask({5, 1}), x({3}), x({5, 3})});
  add("masked_fill", {x({5, 3}), mask({5, 3})}, {{"value", 0.5}});
  add("masked_fill", {x({5, 3}), mask({3})}, {{"value", 0.0}});
  add("masked_fill", {x({3}), mask({5, 3})}, {{"value", 0.5}});
  add("to_device", {x({5, 3})}, {{"device", Device{}}});
  add("copy_to_device", {x({5, 3})}, {{"device", Device{}}, {"source", Device{}}});
  add("clamp", {x({5, 3})}, {{"min", -0.5}, {"max", 1.0}});
  add("clamp", {x({5, 3})}, {{"max", 0.7}});
  add("clamp", {ints({5, 3}, -4, 4)}, {{"min", -2}, {"max", 2}});
  add("clamp_backward", {x({5, 3}), x({5, 3})}, {{"min", -0.5}, {"max", 1.0}});
  add("clamp_tensor", {x({5, 3}), x({3}, -1, 0), x({5, 1}, 0, 1)});
  add("clamp_tensor", {x({5, 3}), none(), x({5, 3}, 0, 1)});
  add("clamp_min", {x({5, 3})}, {{"min", -0.5}});
  add("clamp_max", {x({5, 3})}, {{"max", 0.7}});
  add("clamp_min_tensor", {x({5, 3}), x({3})});
  add("clamp_max_tensor", {x({5, 3}), x({3})});
  add("masked_fill_tensor", {x({5, 3}), mask({5, 3}), x({})});
  add("where", {mask({5, 3}), x({5, 3}), ints({5, 3}, -4, 4)});
});

}  // namespace holon::testing
