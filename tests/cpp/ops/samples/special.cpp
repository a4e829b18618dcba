// Functions of two and three tensors.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"addcmul", "addcdiv"}) {
    add(op, {x({5, 3}), x({5, 3}), x({5, 3}, 0.5, 2)});
    add(op, {x({5, 3}), x({3}), x({5, 1}, 0.5, 2)}, {{"value", -0.7}});
  }
  add("addcmul", {ints({5, 3}, -4, 4), ints({3}, -4, 4), ints({5, 3}, -4, 4)}, {{"value", 2}});
  add("lerp", {x({5, 3}), x({3})}, {{"weight", 0.3}});
  add("lerp_tensor", {x({5, 3}), x({5, 3}), x({3}, 0, 1)});
  add("lerp_tensor", {x({5, 3}), x({5, 3}), x({5, 3}, 0, 1)});
  for (const char* op : {"atan2", "hypot", "logaddexp", "xlogy"}) {
    add(op, {x({5, 3}), x({5, 3}, 0.3, 2)});
    add(op, {x({5, 3}), x({3}, 0.3, 2)});
    add(std::string(op) + "_scalar", {x({5, 3}, 0.3, 2)}, {{"value", 0.7}});
    add(std::string(op) + "_scalar", {x({5, 3}, 0.3, 2)}, {{"value", 0.7}, {"reverse", true}});
  }
});

}  // namespace holon::testing
