// Reductions.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std"}) {
    bool extremum = std::string(op) == "amax" || std::string(op) == "amin";
    auto in = [&](Dims s) { return extremum ? distinct(s) : std::string(op) == "any" || std::string(op) == "all" ? mask(s) : x(s); };
    add(op, {in({5, 3})});
    add(op, {in({5, 3})}, {{"dim", Dims{0}}});
    add(op, {in({5, 3, 2})}, {{"dim", Dims{-1, 0}}, {"keepdim", true}});
    add(op, {in({4, 1, 3})}, {{"dim", Dims{1, 2}}});
  }
  add("sum", {x({0, 3})}, {{"dim", Dims{0}}});
  add("sum", {x({})});
  add("sum", {ints({5, 3}, -4, 4)}, {{"dim", Dims{1}}});
  add("sum", {mask({5, 3})});
  add("amax", {ints({5, 3}, 0, 2)}, {{"dim", Dims{0}}});
  add("var", {x({5, 3})}, {{"dim", Dims{0}}, {"unbiased", false}});
  for (const char* op : {"argmax", "argmin"}) {
    add(op, {distinct({5, 3})});
    add(op, {distinct({5, 3})}, {{"dim", 0}});
    add(op, {ints({5, 7}, 0, 2)}, {{"dim", -1}, {"keepdim", true}});
  }
  add("equal", {ints({5}, 0, 2), ints({5}, 0, 2)});
  add("equal", {ints({5}, 0, 2), ints({4}, 0, 2)});
});

}  // namespace holon::testing
