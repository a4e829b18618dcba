// Order, search, and shapes that the values decide.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (bool descending : {false, true}) {
    add("sort", {distinct({5, 3})}, {{"descending", descending}});
    add("sort", {distinct({2, 5, 3})}, {{"dim", 1}, {"descending", descending}});
    add("argsort", {ints({5, 3}, 0, 2)}, {{"dim", 0}, {"descending", descending}});
    add("topk", {distinct({5, 3})}, {{"k", 2}, {"largest", descending}});
  }
  add("sort", {x({})});
  add("topk", {distinct({2, 5, 3})}, {{"k", 3}, {"dim", 1}});
  add("topk", {distinct({5, 3})}, {{"k", 0}});
  add("msort", {distinct({5, 3})});
  add("search_rows", {distinct({7}), x({5, 3})}, {{"right", true}, {"out_int32", false}});
  add("searchsorted", {ints({4}, 3, 3), ints({5, 3}, 0, 6)});
  add("searchsorted", {ints({5, 4}, 3, 3), ints({5, 3}, 0, 6)}, {{"right", true}});
  add("bucketize", {x({5, 3}), ints({4}, 1, 1)}, {{"out_int32", true}});
  for (const char* op : {"nonzero", "argwhere", "where_condition", "unique"}) {
    add(op, {ints({5, 3}, 0, 2)});
    add(op, {ints({0, 3}, 0, 2)});
  }
  add("nonzero", {x({})});
  add("nonzero_tuple", {mask({5, 3})}, {{"as_tuple", true}});
  add("masked_select", {x({5, 3}), mask({5, 3})});
  add("masked_select", {x({5, 1}), mask({3})});
  add("unique", {ints({5, 3}, 0, 2)}, {{"return_inverse", true}, {"return_counts", true}});
  add("unique", {ints({5, 2}, 0, 1)}, {{"return_inverse", true}, {"return_counts", true}, {"dim", 0}});
  add("unique", {ints({2, 5}, 0, 1)}, {{"dim", 1}});
  add("bincount", {ints({7}, 0, 4), none()}, {{"minlength", 3}});
  add("bincount", {ints({7}, 0, 4), x({7})}, {}, false);
  add("histc", {x({5, 3})}, {{"bins", 4}});
  add("histc", {x({5, 3})}, {{"bins", 3}, {"min", -1}, {"max", 1}});
  for (const char* op : {"quantile", "nanquantile"}) {
    add(op, {distinct({5, 3})}, {{"q", 0.3}});
    add(op, {distinct({5, 3})}, {{"q", 0.7}, {"dim", 0}, {"keepdim", true}});
    add(op, {distinct({2, 5})}, {{"q", 0.7}, {"dim", 1}, {"interpolation", "midpoint"}});
    add(std::string(op) + "_list", {distinct({5, 3}), x({2}, 0.1, 0.9)}, {{"dim", 0}}, false);
  }
});

}  // namespace holon::testing
