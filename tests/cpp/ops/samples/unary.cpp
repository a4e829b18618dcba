// Functions of one tensor.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op :
       {"relu",  "tanh", "sigmoid", "silu",  "gelu",  "neg",  "abs",        "sign",    "square", "exp",
        "expm1", "sin",  "cos",     "erf",   "floor", "ceil", "round",      "trunc",   "frac",   "exp2",
        "sinh",  "cosh", "atan",    "asinh", "erfc",  "sinc", "nan_to_num", "positive"}) {
    add(op, {x({5, 3})});
    add(op, {x({2, 1, 7})});
  }
  add("relu", {x({0, 3})});
  add("gelu", {x({5, 3})}, {{"approximate", "tanh"}});
  for (const char* op : {"tan", "asin", "acos", "atanh", "erfinv"}) {
    add(op, {x({5, 3}, -0.9, 0.9)});
    add(op, {x({2, 1, 7}, -0.9, 0.9)});
  }
  add("acosh", {x({5, 3}, 1.1, 3)});
  add("logit", {x({5, 3}, 0.1, 0.9)});
  add("logit", {x({5, 3}, -0.5, 1.5)}, {{"eps", 0.3}}, false);
  add("replace_nonfinite", {x({5, 3})}, {{"nan", 1.0}, {"posinf", 2.0}, {"neginf", 3.0}});
  for (const char* op : {"sqrt", "rsqrt", "reciprocal", "abs", "sin", "cos", "erf"})
    add(std::string(op) + "_backward", {x({5, 3}), x({5, 3}, 0.3, 2)});
  add("bitwise_not", {ints({5, 3}, -4, 4)});
  add("bitwise_not", {mask({5, 3})});
  for (const char* op : {"sqrt", "rsqrt", "reciprocal", "log", "log2", "log10", "log1p"}) {
    add(op, {x({5, 3}, 0.5, 3)});
    add(op, {x({3}, 0.5, 3)});
  }
  for (const char* op : {"isnan", "isinf", "isfinite", "logical_not"}) add(op, {x({5, 3})});
  add("logical_not", {mask({5, 3})});
  add("sqrt", {ints({5}, 1, 9)});
  add("abs", {ints({5, 3}, -4, 4)});
});

}  // namespace holon::testing
