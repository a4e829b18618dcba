// Shapes.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"reshape", "view"}) {
    add(op, {x({4, 3})}, {{"shape", Dims{12}}});
    add(op, {x({12})}, {{"shape", Dims{4, -1}}});
    add(op, {x({5, 3})}, {{"shape", Dims{3, 5}}});
    add(op, {x({4, 6})}, {{"shape", Dims{2, 2, 6}}});
    add(op, {x({5, 1, 3})}, {{"shape", Dims{5, 3}}});
    add(op, {x({0, 3})}, {{"shape", Dims{3, 0}}});
  }
  add("flatten", {x({5, 2, 3})}, {{"start_dim", 1}});
  add("permute", {x({5, 2, 3})}, {{"dims", Dims{2, 0, 1}}});
  add("transpose", {x({5, 2, 3})}, {{"dim0", 0}, {"dim1", -1}});
  add("t", {x({5, 3})});
  add("unsqueeze", {x({5, 3})}, {{"dim", 1}});
  add("squeeze", {x({5, 1, 3, 1})});
  add("squeeze", {x({5, 1, 3, 1})}, {{"dim", Dims{1}}});
  add("expand", {x({5, 1})}, {{"size", Dims{5, 3}}});
  add("expand", {x({3})}, {{"size", Dims{5, -1}}});
  add("expand", {x({1, 3})}, {{"size", Dims{2, 5, 3}}});
  add("slice", {x({5, 3})}, {{"dim", 0}, {"start", 1}, {"end", 4}});
  add("slice", {x({5, 7})}, {{"dim", 1}, {"start", 1}, {"step", 3}});
  add("slice", {x({5, 3})}, {{"dim", 0}});
  add("slice", {x({5, 3})}, {{"dim", 0}, {"start", 4}, {"end", 2}});
  add("slice_backward", {x({3, 3})}, {{"shape", Dims{5, 3}}, {"dim", 0}, {"start", 1}, {"end", 4}});
  add("select", {x({5, 3})}, {{"dim", 0}, {"index", -2}});
  add("narrow", {x({5, 3})}, {{"dim", 0}, {"start", 1}, {"length", 3}});
  add("split", {x({5, 3})}, {{"split_sizes", Dims{2}}});
  add("split", {x({5, 3})}, {{"split_sizes", Dims{1, 2}}, {"dim", 1}});
  add("chunk", {x({5, 3})}, {{"chunks", 3}});
  add("cat", {x({5, 3}), x({2, 3}), x({1, 3})});
  add("cat", {x({0}), x({5, 3}), x({0}), x({2, 3})}, {{"dim", -2}});
  add("cat", {x({5, 3}), x({5, 4})}, {{"dim", -1}});
  add("stack", {x({5, 3}), x({5, 3})}, {{"dim", 1}});
  add("flip", {x({5, 3})}, {{"dims", Dims{0}}});
  add("flip", {x({2, 5, 3})}, {{"dims", Dims{-1, 0}}});
  add("clone", {x({5, 3})});
  add("contiguous", {x({5, 3})});
  add("copy", {x({5, 3}), x({3})}, {}, false);
});

}  // namespace holon::testing
