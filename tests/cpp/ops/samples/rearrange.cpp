// Shapes, continued.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("movedim", {x({5, 2, 3})}, {{"source", Dims{0}}, {"destination", Dims{-1}}});
  add("movedim", {x({5, 2, 3})}, {{"source", Dims{0, 2}}, {"destination", Dims{1, 0}}});
  add("movedim", {x({})}, {{"source", Dims{0}}, {"destination", Dims{-1}}});
  add("fliplr", {x({5, 3})});
  add("flipud", {x({5, 3})});
  for (int k : {0, 1, 2, -1}) add("rot90", {x({5, 3})}, {{"k", k}});
  add("roll", {x({5, 3})}, {{"shifts", Dims{2}}, {"dims", Dims{0}}});
  add("roll", {x({5, 3})}, {{"shifts", Dims{-7, 1}}, {"dims", Dims{0, -1}}});
  add("roll", {x({5, 3})}, {{"shifts", Dims{4}}});
  add("roll", {x({})}, {{"shifts", Dims{4}}, {"dims", Dims{-1}}});
  add("repeat", {x({5, 3})}, {{"repeats", Dims{2, 1}}});
  add("repeat", {x({5})}, {{"repeats", Dims{2, 3}}});
  add("repeat", {x({5, 3})}, {{"repeats", Dims{0, 2}}});
  add("tile", {x({5, 3})}, {{"dims", Dims{2}}});
  add("repeat_interleave", {x({5, 3})}, {{"repeats", 2}, {"dim", 0}});
  add("repeat_interleave", {x({5, 3})}, {{"repeats", 3}});
  add("repeat_interleave_each", {x({5, 3}), ints({3}, 0, 2)}, {{"dim", 1}});
  add("unbind", {x({5, 3})}, {{"dim", 1}});
  add("unflatten", {x({5, 6})}, {{"dim", 1}, {"sizes", Dims{2, -1}}});
  add("tensor_split", {x({5, 3})}, {{"sections", 2}});
  add("tensor_split_at", {x({5, 3})}, {{"indices", Dims{1, 4}}});
  add("broadcast_like", {x({3}), x({5, 3})}, {}, false);
  add("broadcast_like", {x({5}), x({5, 3})}, {{"broadcast_axes", Dims{1}}}, false);
  add("broadcast_tensors", {x({5, 1}), x({3})});
  add("meshgrid", {x({5}), x({3})});
  add("meshgrid", {x({5}), x({3}), x({2})}, {{"indexing", "xy"}});
  for (const char* op : {"atleast_1d", "atleast_2d", "atleast_3d"}) {
    add(op, {x({5})});
    add(std::string(op) + "_list", {x({5}), x({})});
  }
  for (const char* op : {"hstack", "vstack", "dstack"}) {
    add(op, {x({5}), x({5})});
    add(op, {x({5, 3}), x({5, 3})});
  }
  add("diagonal", {x({5, 3})});
  add("diagonal", {x({5, 3})}, {{"offset", -2}});
  add("diagonal", {x({3, 5, 2})}, {{"offset", 1}, {"dim1", -1}, {"dim2", 0}});
  add("diagonal_backward", {x({3})}, {{"shape", Dims{5, 3}}});
  add("diagonal_backward", {x({5, 2})}, {{"shape", Dims{3, 5, 2}}, {"dim1", 0}, {"dim2", 2}});
  add("diag_embed", {x({5, 3})});
  add("diag_embed", {x({5})}, {{"offset", -1}, {"dim1", 1}, {"dim2", 0}});
  add("diag", {x({5})}, {{"diagonal", 1}});
  add("diag", {x({5, 3})});
  add("unfold_dim", {x({5, 3})}, {{"dimension", 0}, {"size", 2}, {"step", 1}});
  add("unfold_dim", {x({3, 7})}, {{"dimension", -1}, {"size", 3}, {"step", 2}});
  add("unfold_dim_backward", {x({4, 3, 2})}, {{"shape", Dims{5, 3}}, {"dimension", 0}, {"size", 2}, {"step", 1}});
});

}  // namespace holon::testing
