// Bits, and being close.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"}) {
    add(op, {ints({5, 3}, 0, 9), ints({5, 3}, 0, 9)});
    add(op, {ints({5, 3}, 0, 9), ints({3}, 0, 9)});
    add(std::string(op) + "_scalar", {ints({5, 3}, 0, 9)}, {{"value", 2}});
    add(std::string(op) + "_scalar", {ints({5, 3}, 0, 9)}, {{"value", 5}, {"reverse", true}});
  }
  add("bitwise_and", {mask({5, 3}), mask({5, 3})});
  add("isclose", {x({5, 3}), x({3})}, {{"rtol", 0.5}});
  add("isclose", {x({5, 3}), x({5, 3})}, {{"rtol", 0.0}, {"atol", 0.4}, {"equal_nan", true}});
  add("allclose", {x({5, 3}), x({5, 3})});
});

}  // namespace holon::testing
