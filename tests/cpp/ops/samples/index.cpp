// Indices.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("embedding", {x({7, 3}), ints({5}, 0, 6)});
  add("embedding", {x({7, 3}), ints({2, 5}, 0, 6, int32)});
  add("embedding_backward", {x({5, 3}), ints({5}, 0, 6)}, {{"rows", 7}});
  for (int dim : {0, 1}) add("index_select", {x({5, 3}), ints({4}, 0, 2)}, {{"dim", dim}});
  add("index_add_zeros", {x({4, 3}), ints({4}, 0, 4)}, {{"dim", 0}, {"size", 5}});
  add("gather", {x({5, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}});
  add("gather", {x({5, 3}), ints({5, 7}, 0, 2)}, {{"dim", 1}});
  add("gather", {x({5, 3}), ints({3, 2}, 0, 2)}, {{"dim", 1}});
  add("scatter_add_zeros", {x({4, 3}), ints({4, 3}, 0, 4)}, {{"dim", 0}, {"shape", Dims{5, 3}}});
  add("one_hot", {ints({5, 2}, 0, 3)}, {{"num_classes", 4}});
});

}  // namespace holon::testing
