// Products, convolutions, pools.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("matmul", {x({4, 5}), x({5, 8})});
  add("matmul", {x({5}), x({5, 3})});
  add("matmul", {x({4, 5}), x({5})});
  add("matmul", {x({2, 4, 5}), x({5, 3})});
  add("matmul_nd", {x({4, 5}), x({5, 3})});
  add("matmul_nd", {x({3, 4, 5}), x({3, 5, 2})});
  add("matmul_nd", {x({3, 1, 4, 5}), x({2, 5, 2})});
  add("matmul_nd", {x({4, 0}), x({0, 3})});
  add("linear", {x({4, 5}), x({3, 5}), x({3})});
  add("linear", {x({2, 4, 5}), x({3, 5}), none()});
  add("linear", {x({5}), x({3, 5}), x({3})});
  add("linear_weight_grad", {x({4, 3}), x({4, 5})});
  add("linear_weight_grad", {x({2, 4, 3}), x({2, 4, 5})});
  Dims one{1, 1}, two{2, 2};
  add("conv2d", {x({3, 2, 5, 5}), x({4, 2, 3, 3}), x({4})}, {{"padding", one}});
  add("conv2d", {x({2, 3, 5, 4}), x({5, 3, 2, 2}), none()}, {{"stride", two}});
  add("conv2d", {x({2, 4, 5, 5}), x({4, 2, 3, 3}), x({4})}, {{"groups", 2}});
  add("conv2d_input_grad", {x({2, 4, 3, 3}), x({4, 2, 3, 3})}, {{"shape", Dims{2, 2, 5, 5}}});
  add("conv2d_weight_grad", {x({2, 4, 3, 3}), x({2, 2, 5, 5})}, {{"shape", Dims{4, 2, 3, 3}}});
  add("max_pool2d", {distinct({2, 3, 5, 5})}, {{"kernel_size", two}});
  add("max_pool2d", {distinct({2, 3, 5, 5})}, {{"kernel_size", Dims{3, 3}}, {"stride", two}, {"padding", one}, {"ceil_mode", true}});
  add("max_pool2d_index", {distinct({2, 3, 5, 5})}, {{"kernel_size", two}, {"stride", two}, {"padding", Dims{0, 0}}, {"ceil_mode", false}});
  add("max_pool2d_backward", {x({2, 3, 2, 2}), ints({2, 3, 2, 2}, 0, 3, uint8)},
      {{"kernel_size", two}, {"stride", two}, {"padding", Dims{0, 0}}, {"shape", Dims{2, 3, 5, 5}}});
  add("avg_pool2d", {x({2, 3, 5, 5})}, {{"kernel_size", two}});
  add("avg_pool2d", {x({2, 3, 5, 5})}, {{"kernel_size", Dims{3, 3}}, {"stride", two}, {"padding", one}});
  add("avg_pool2d_backward", {x({2, 3, 2, 2})}, {{"kernel_size", two}, {"stride", two}, {"padding", Dims{0, 0}}, {"shape", Dims{2, 3, 5, 5}}});
});

}  // namespace holon::testing
