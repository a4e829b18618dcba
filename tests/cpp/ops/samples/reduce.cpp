// Reductions.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"sum", "mean", "prod", "amax", "amin", "any", "all", "var", "std"}) {
    bool extremum = std::string(op) == "amax" || std::string(op) == "amin";
    auto in = [&](Dims s) {
      return extremum ? distinct(s) : std::string(op) == "any" || std::string(op) == "all" ? mask(s) : x(s);
    };
    add(op, {in({5, 3})});
    add(op, {in({5, 3})}, {{"dim", Dims{0}}});
    add(op, {in({5, 3, 2})}, {{"dim", Dims{-1, 0}}, {"keepdim", true}});
    add(op, {in({4, 1, 3})}, {{"dim", Dims{1, 2}}});
  }
  for (const char* op : {"nansum", "nanmean", "logsumexp", "sum_squares", "sum_abs"}) {
    add(op, {x({5, 3})}, {{"dim", Dims{0}}});
    add(op, {x({5, 3, 2})}, {{"dim", Dims{-1, 0}}, {"keepdim", true}});
  }
  for (const char* op : {"sum_squares", "sum_abs"}) add(op, {x({5, 3})});
  add("count_nonzero", {ints({5, 3}, 0, 2)});
  add("count_nonzero", {ints({5, 3}, 0, 2)}, {{"dim", Dims{1}}});
  for (const char* op : {"max", "min", "median"}) {
    add(op, {distinct({5, 3})});
    add(op, {distinct({})});
    add(std::string(op) + "_dim", {distinct({5, 3})}, {{"dim", 0}});
    add(std::string(op) + "_dim", {distinct({4, 5, 3})}, {{"dim", -2}, {"keepdim", true}});
    add(std::string(op) + "_dim", {ints({5, 3}, 0, 2)}, {{"dim", 1}});
    add(std::string(op) + "_dim", {x({})}, {{"dim", 0}});
  }
  for (const char* op : {"max_other", "min_other"}) add(op, {x({5, 3}), x({3})});
  add("kthvalue", {distinct({5, 3})}, {{"k", 2}, {"dim", 0}});
  add("kthvalue", {distinct({5, 3})}, {{"k", 3}, {"keepdim", true}});
  add("aminmax", {distinct({5, 3})});
  add("aminmax", {distinct({5, 3})}, {{"dim", 0}, {"keepdim", true}});
  for (const char* op : {"var_mean", "std_mean"}) {
    add(op, {x({5, 3})});
    add(op, {x({5, 3})}, {{"dim", Dims{0}}, {"keepdim", true}});
  }
  for (const char* op : {"var_all", "std_all"}) add(op, {x({5, 3})}, {{"unbiased", false}});
  add("std", {x({5, 3})}, {{"dim", Dims{0}}, {"correction", 0}});
  add("prod", {ints({5, 3}, -1, 2)}, {{"dim", Dims{0}}});
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
