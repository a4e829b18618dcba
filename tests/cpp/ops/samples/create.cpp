// Creation.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"zeros", "ones"}) add(op, {}, {{"size", Dims{5, 3}}});
  add("full", {}, {{"size", Dims{5, 3}}, {"fill_value", 0.5}});
  add("full", {}, {{"size", Dims{2, 0}}, {"fill_value", 3}});
  add("arange", {}, {{"start", 7}});
  add("arange", {}, {{"start", 1.0}, {"end", 3.0}, {"step", 0.25}});
  add("arange_steps", {}, {{"start", 7}, {"end", -3}, {"step", -2}});
  add("eye", {}, {{"n", 5}});
  add("eye", {}, {{"n", 3}, {"m", 7}});
  add("linspace", {}, {{"start", -1.0}, {"end", 2.0}, {"steps", 7}});
  add("logspace", {}, {{"start", -1.0}, {"end", 2.0}, {"steps", 7}, {"base", 2.0}});
  add("hann_window", {}, {{"window_length", 7}});
  add("hann_window", {}, {{"window_length", 7}, {"periodic", false}, {"dtype", float64}});
  add("tril_indices", {}, {{"row", 4}, {"col", 3}});
  add("tril_indices", {}, {{"row", 3}, {"col", 5}, {"offset", -1}});
  add("triu_indices", {}, {{"row", 4}, {"col", 3}, {"offset", 1}});
  for (const char* op : {"zeros_like", "ones_like", "zero"}) add(op, {x({5, 3})});
  add("full_like", {x({5, 3})}, {{"fill_value", 2.0}});
  add("fill", {x({5, 3})}, {{"value", 2.0}});
  add("fill_tensor", {x({5, 3}), x({})});
  for (const char* op : {"tril", "triu"}) {
    add(op, {x({5, 5})});
    add(op, {x({2, 5, 3})}, {{"diagonal", -1}});
    add(op, {x({3, 7})}, {{"diagonal", 2}});
  }
});

}  // namespace holon::testing
