// Two tensors, and a tensor with a number.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum", "fmod", "remainder", "floor_divide", "eq",
                         "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"}) {
    bool divides = std::string(op) == "fmod" || std::string(op) == "remainder" || std::string(op) == "floor_divide" ||
        std::string(op) == "div";
    double low = divides ? 0.6 : -2;
    add(op, {x({5, 3}), x({5, 3}, low, 2)}, {}, !divides || std::string(op) == "div");
    add(op, {x({5, 3}), x({3}, low, 2)}, {}, !divides || std::string(op) == "div");
    add(op, {x({1, 7}), x({4, 1}, low, 2)}, {}, !divides || std::string(op) == "div");
    add(op, {ints({5, 3}, -4, 4), ints({3}, 1, 4)});
    add(std::string(op) + "_scalar", {x({5, 3})}, {{"value", 0.7}});
    add(std::string(op) + "_scalar", {ints({5, 3}, -4, 4)}, {{"value", 2}});
    if (std::string(op) == "sub" || std::string(op) == "div")
      add(std::string(op) + "_scalar", {x({5, 3}, 0.5, 3)}, {{"value", 0.7}, {"reverse", true}});
  }
  add("add", {x({}), x({5})});
  add("add", {x({0, 3}), x({3})});
  add("mul", {x({}), x({})});
  add("mul", {x({5, 3}), ints({3}, -3, 3)}, {}, false);
  add("mul", {x({1, 3}), x({2, 5, 1})});
  add("eq", {ints({5, 3}, 0, 2), ints({5, 3}, 0, 2)});
  add("maximum", {ints({5, 3}, 0, 2, int32), ints({5, 3}, 0, 2, int32)});
  add("pow", {x({5, 3}, 0.5, 2), x({3}, -1, 2)});
  add("pow", {x({5, 3}, 0.5, 2), x({5, 3}, -1, 2)});
  add("pow_scalar", {x({5, 3}, 0.5, 2)}, {{"value", 2.5}});
  add("pow_scalar", {x({5, 3}, 0.5, 2)}, {{"value", 2}});
  add("pow_scalar", {x({5, 3}, 0.5, 2)}, {{"value", 1.5}, {"reverse", true}});
  add("sum_to_size", {x({5, 3})}, {{"size", Dims{1, 3}}});
  add("sum_to_size", {x({2, 5, 3})}, {{"size", Dims{3}}});
  add("sum_to_size", {x({5, 3})}, {{"size", Dims{5, 3}}});
  for (const char* op : {"add_scaled", "sub_scaled"}) {
    add(op, {x({5, 3}), x({3})}, {{"alpha", 0.7}});
    add(op, {ints({5, 3}, -4, 4), ints({5, 3}, -4, 4)}, {{"alpha", 3}});
  }
  add("truncated_divide", {x({5, 3}), x({3}, 0.6, 2)}, {}, false);
  add("truncated_divide", {ints({5, 3}, -4, 4), ints({3}, 1, 4)});
  for (const char* mode : {"floor", "trunc"})
    add("div_rounded", {x({5, 3}), x({5, 3}, 0.6, 2)}, {{"rounding_mode", mode}}, false);
  add("div_rounded", {x({5, 3}), x({5, 3}, 0.6, 2)});
  for (const char* op : {"fmod_scalar", "remainder_scalar"})
    add(op, {x({5, 3}, 0.6, 2)}, {{"value", 0.7}, {"reverse", true}}, false);
});

}  // namespace holon::testing
