// Max unpooling.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  // One element in each plane: no two share a place, where the last one written would stay.
  add("max_unpool1d", {x({5, 3, 1}), ints({5, 3, 1}, 0, 2)}, {{"kernel_size", Dims{3}}});
  add("max_unpool2d", {x({5, 3, 1, 1}), ints({5, 3, 1, 1}, 0, 3)}, {{"kernel_size", Dims{2}}});
  add("max_unpool2d", {x({3, 1, 1}), ints({3, 1, 1}, 0, 5)}, {{"kernel_size", Dims{2}}, {"output_size", Dims{2, 3}}});
  add("max_unpool3d", {x({2, 3, 1, 1, 1}), ints({2, 3, 1, 1, 1}, 0, 7)}, {{"kernel_size", Dims{2, 2, 2}}});
});

}  // namespace holon::testing
