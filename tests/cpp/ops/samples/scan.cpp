// Scans.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"cumsum", "cumprod", "logcumsumexp"}) {
    add(op, {x({5, 3})}, {{"dim", 0}});
    add(op, {x({2, 5, 3})}, {{"dim", -2}});
    add(op, {x({})}, {{"dim", 0}});
    add(op, {x({0, 3})}, {{"dim", 0}});
  }
  add("cumsum", {ints({5, 3}, -4, 4)}, {{"dim", 1}});
  add("cumsum", {mask({5, 3})}, {{"dim", 0}});
  add("cumsum", {x({5, 3})}, {{"dim", 0}, {"dtype", float64}});
  add("cumprod", {ints({5, 3}, -4, 4, int32)}, {{"dim", 1}});
  add("cumprod_backward", {x({5, 3}), x({5, 3})}, {{"dim", 0}}, false);
  add("logcumsumexp_backward", {x({5, 3}), x({5, 3}), x({5, 3}, 2, 3)}, {{"dim", 1}}, false);
  for (const char* op : {"cummax", "cummin"}) {
    add(op, {distinct({5, 3})}, {{"dim", 0}});
    add(op, {distinct({2, 5, 3})}, {{"dim", 1}});
    add(op, {ints({5, 3}, 0, 2)}, {{"dim", -1}});
  }
  add("diff", {x({5, 3})});
  add("diff", {x({5, 3})}, {{"n", 2}, {"dim", 0}});
});

}  // namespace holon::testing
