// Indices.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("embedding", {x({7, 3}), ints({5}, 0, 6)});
  add("embedding", {x({7, 3}), ints({2, 5}, 0, 6, int32)});
  add("embedding", {x({7, 3}), ints({2, 5}, 0, 6)}, {{"padding_idx", -6}}, false);
  add("embedding_backward", {x({5, 3}), ints({5}, 0, 6)}, {{"rows", 7}});
  for (int dim : {0, 1}) add("index_select", {x({5, 3}), ints({4}, 0, 2)}, {{"dim", dim}});
  add("index_add_zeros", {x({4, 3}), ints({4}, 0, 4)}, {{"dim", 0}, {"size", 5}});
  // An index without axes is one element, which no split divides.
  add("index_select", {x({5, 3}), ints({}, 0, 2)}, {{"dim", 0}});
  add("index_select", {mask({5, 3}), ints({}, 0, 2)}, {{"dim", 0}});
  add("index_add_zeros", {x({1, 3}), ints({}, 0, 4)}, {{"dim", 0}, {"size", 5}});
  add("gather", {x({5}), ints({}, 0, 4)}, {{"dim", 0}});
  add("gather", {x({}), ints({4}, 0, 0)}, {{"dim", 0}});
  add("scatter_add_zeros", {x({}), ints({}, 0, 4)}, {{"dim", 0}, {"shape", Dims{5}}});
  add("scatter_add_zeros", {x({4}), ints({4}, 0, 0)}, {{"dim", 0}, {"shape", Dims{}}});
  add("gather", {x({5, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}});
  add("gather", {x({5, 3}), ints({5, 7}, 0, 2)}, {{"dim", 1}});
  add("gather", {x({5, 3}), ints({3, 2}, 0, 2)}, {{"dim", 1}});
  add("scatter_add_zeros", {x({4, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}, {"shape", Dims{5, 3}}});
  for (const char* mode : {"set", "add", "multiply"}) {
    // Where an element is named twice, which value it is left with is open: "set" names each once.
    bool set = std::string(mode) == "set";
    if (!set) {
      add("scatter_along", {x({5, 3}), ints({4, 3}, 0, 4), x({4, 3})}, {{"dim", 0}, {"mode", mode}});
      add("scatter_along", {x({5, 3}), ints({4, 2}, 0, 4), x({4, 2})}, {{"dim", 0}, {"mode", mode}});
    }
    add("scatter_along", {x({5, 3}), ints({1, 3}, 0, 4), x({1, 3})}, {{"dim", 0}, {"mode", mode}});
    add("scatter_along", {x({5, 3}), ints({5, 1}, 0, 2), x({5, 1})}, {{"dim", 1}, {"mode", mode}});
  }
  add("scatter", {x({5, 3}), ints({1, 3}, 0, 4), x({4, 3})}, {{"dim", 0}});
  add("scatter", {x({5, 3}), ints({4, 3}, 0, 4), x({4, 3})}, {{"dim", 0}, {"reduce", "add"}});
  add("scatter_value", {x({5, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}, {"value", 0.5}});
  add("scatter_value", {x({5, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}, {"value", 0.5}, {"reduce", "multiply"}});
  add("scatter_add", {x({5, 3}), ints({5, 4}, 0, 2), x({5, 4})}, {{"dim", -1}});
  add("index_add", {x({5, 3}), ints({4}, 0, 4), x({4, 3})}, {{"dim", 0}});
  add("index_add", {x({5, 3}), ints({4}, 0, 2), x({5, 4})}, {{"dim", 1}, {"alpha", 0.5}});
  add("index_copy", {x({5, 3}), ints({1}, 0, 2), x({5, 1})}, {{"dim", 1}});
  add("index_fill", {x({5, 3}), ints({4}, 0, 4)}, {{"dim", 0}, {"value", 2.0}});
  add("take", {x({5, 3}), ints({4, 2}, -15, 14)});
  add("take_along_dim", {x({5, 3}), ints({1, 3}, 0, 4)}, {{"dim", 0}});
  add("take_along_dim", {x({5, 3}), ints({7}, 0, 14)});
  add("batch_gather", {x({5, 3, 2}), ints({5, 4}, 0, 2)});
  add("gather_nd", {x({5, 3, 2}), ints({4, 2}, 0, 2)});
  add("gather_nd", {x({5, 3}), ints({2, 4, 1}, 0, 4)});
  add("scatter_nd", {ints({4, 1}, 0, 4), x({4, 3})}, {{"shape", Dims{5, 3}}});
  add("tensor_scatter_nd_update", {x({5, 3}), ints({1, 2}, 0, 2), x({1})});
  add("one_hot", {ints({5, 2}, 0, 3)}, {{"num_classes", 4}});
  add("one_hot", {ints({5, 2}, 0, 3)});
  add("one_hot_rows", {ints({5, 2}, 0, 3)}, {{"num_classes", 4}});

  add("index_axes", {x({5, 3}), ints({4}, -5, 4)}, {{"axis", 0}});
  add("index_axes", {x({5, 3}), ints({4}, -3, 2)}, {{"axis", 1}});
  add("index_axes", {x({5, 3, 2}), ints({4}, 0, 2), ints({2, 1}, 0, 1)}, {{"axis", 1}});
  add("index_axes", {x({5, 3, 2}), ints({2, 2}, 0, 4, int32)}, {{"axis", 0}});
  add("index_axes_backward", {x({4, 3}), ints({4}, -5, 4)}, {{"axis", 0}, {"shape", Dims{5, 3}}});
  add("index_axes_backward", {x({5, 2, 4}), ints({4}, 0, 2), ints({2, 1}, 0, 1)},
      {{"axis", 1}, {"shape", Dims{5, 3, 2}}});
  add("index_put_axes", {x({5, 3}), x({1, 3}), ints({1}, -5, 4)}, {{"axis", 0}});
  add("index_put_axes", {x({5, 3}), x({4, 3}), ints({4}, -5, 4)}, {{"axis", 0}, {"accumulate", true}});
  add("index_put_axes", {x({5, 3, 2}), x({5, 4}), ints({4}, 0, 2), ints({4}, 0, 1)},
      {{"axis", 1}, {"accumulate", true}});
  add("window_put", {x({5, 3}), x({2, 3})}, {{"starts", Dims{1, 0}}, {"steps", Dims{2, 1}}, {"window", Dims{2, 3}}});
  add("window_put", {x({5, 3}), x({1, 2})}, {{"starts", Dims{4, 1}}, {"steps", Dims{1, 1}}, {"window", Dims{1, 2}}});
});

}  // namespace holon::testing
