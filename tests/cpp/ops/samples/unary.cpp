// Functions of one tensor.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"relu", "tanh", "sigmoid", "silu", "gelu", "neg", "abs", "sign", "square", "exp", "expm1", "sin", "cos", "erf", "floor",
                         "ceil", "round", "trunc"}) {
    add(op, {x({5, 3})});
    add(op, {x({2, 1, 7})});
  }
  add("relu", {x({0, 3})});
  add("gelu", {x({5, 3})}, {{"approximate", "tanh"}});
  for (const char* op : {"sqrt", "rsqrt", "reciprocal", "log", "log2", "log1p"}) {
    add(op, {x({5, 3}, 0.5, 3)});
    add(op, {x({3}, 0.5, 3)});
  }
  for (const char* op : {"isnan", "isinf", "isfinite", "logical_not"}) add(op, {x({5, 3})});
  add("logical_not", {mask({5, 3})});
  add("sqrt", {ints({5}, 1, 9)});
  add("abs", {ints({5, 3}, -4, 4)});
});

}  // namespace holon::testing
