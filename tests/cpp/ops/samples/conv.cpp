// Convolutions and pools.
#include "sample.h"

namespace holon::testing {

static const Samples convolutions([](const Samples::Add& add) {
  Dims one{1, 1}, two{2, 2};
  add("conv1d", {x({3, 2, 5}), x({4, 2, 3}), x({4})}, {{"padding", Dims{1}}});
  add("conv1d", {x({2, 5}), x({3, 2, 2}), none()}, {{"stride", Dims{2}}});
  add("conv2d", {x({3, 2, 5, 5}), x({4, 2, 3, 3}), x({4})}, {{"padding", one}});
  add("conv2d", {x({2, 3, 5, 4}), x({5, 3, 2, 2}), none()}, {{"stride", two}, {"padding", Dims{0, 1, 1, 0}}});
  add("conv2d", {x({2, 4, 5, 5}), x({4, 2, 3, 3}), x({4})}, {{"groups", 2}});
  add("conv2d", {x({3, 3, 5, 5}), x({3, 1, 3, 3}), x({3})}, {{"groups", 3}, {"dilation", two}});
  add("conv3d", {x({2, 3, 3, 4, 3}), x({2, 3, 2, 2, 2}), x({2})}, {{"padding", Dims{1, 0, 1}}});
  add("conv3d", {x({2, 4, 3, 3, 3}), x({2, 2, 2, 3, 2}), none()}, {{"groups", 2}, {"stride", Dims{1, 2, 2}}});
  add("conv_transpose1d", {x({3, 2, 5}), x({2, 4, 3}), x({4})}, {{"stride", Dims{2}}, {"output_padding", Dims{1}}});
  add("conv_transpose2d", {x({3, 2, 3, 4}), x({2, 4, 3, 3}), x({4})}, {{"padding", one}, {"stride", two}});
  add("conv_transpose2d", {x({2, 4, 3, 3}), x({4, 3, 2, 2}), none()}, {{"groups", 2}, {"dilation", two}});
  add("conv_transpose2d", {x({3, 2, 3}), x({3, 2, 2, 2}), none()},
      {{"stride", two}, {"dilation", Dims{3, 3}}, {"output_padding", two}});
  add("conv_transpose3d", {x({2, 2, 2, 3, 2}), x({2, 3, 2, 2, 2}), x({3})}, {{"stride", Dims{1, 2, 1}}});
  Attributes plain{{"stride", one}, {"padding", Dims{0, 0, 0, 0}}, {"dilation", one}, {"groups", 1}}, groups = plain,
                                                                                                      depthwise = plain;
  groups[3].second = 2;
  depthwise[3].second = 3;
  auto with_shape = [](Attributes a, Dims shape) {
    a.push_back({"shape", shape});
    return a;
  };
  add("convolution", {x({3, 4, 5, 5}), x({5, 4, 3, 3}), x({5})}, plain);
  add("convolution", {x({2, 4, 5, 5}), x({6, 2, 3, 3}), x({6})}, groups);
  add("convolution", {x({2, 3, 5, 5}), x({3, 1, 3, 3}), none()}, depthwise);
  add("convolution_input_grad", {x({2, 4, 3, 3}), x({4, 2, 3, 3})}, with_shape(plain, {2, 2, 5, 5}));
  add("convolution_input_grad", {x({2, 6, 3, 3}), x({6, 2, 3, 3})}, with_shape(groups, {2, 4, 5, 5}));
  add("convolution_input_grad", {x({2, 3, 3, 3}), x({3, 1, 3, 3})}, with_shape(depthwise, {2, 3, 5, 5}));
  add("convolution_weight_grad", {x({2, 4, 3, 3}), x({2, 2, 5, 5})}, with_shape(plain, {4, 2, 3, 3}));
  add("convolution_weight_grad", {x({2, 6, 3, 3}), x({2, 4, 5, 5})}, with_shape(groups, {6, 2, 3, 3}));
  add("convolution_weight_grad", {x({2, 3, 3, 3}), x({2, 3, 5, 5})}, with_shape(depthwise, {3, 1, 3, 3}));
});

static const Samples pools([](const Samples::Add& add) {
  Dims one{1, 1}, two{2, 2}, three{3, 3}, zero{0, 0};
  Dims deep{2, 3, 2};
  add("max_pool1d", {distinct({2, 3, 7})}, {{"kernel_size", Dims{3}}, {"stride", Dims{2}}, {"padding", Dims{1}}});
  add("max_pool2d", {distinct({2, 3, 5, 5})}, {{"kernel_size", two}});
  add("max_pool2d", {distinct({2, 3, 5, 5})},
      {{"kernel_size", three}, {"stride", two}, {"padding", one}, {"ceil_mode", true}});
  add("max_pool2d", {distinct({3, 5, 5})}, {{"kernel_size", two}, {"stride", one}, {"dilation", two}});
  add("max_pool3d", {distinct({2, 3, 4, 5, 3})}, {{"kernel_size", deep}});
  add("max_pool1d_with_indices", {distinct({2, 3, 7})}, {{"kernel_size", Dims{3}}});
  add("max_pool2d_with_indices", {distinct({2, 3, 5, 5})}, {{"kernel_size", two}});
  add("max_pool3d_with_indices", {distinct({2, 2, 4, 5, 3})}, {{"kernel_size", deep}, {"stride", Dims{1, 2, 1}}});
  for (bool in_plane : {false, true})
    add("max_pool2d_index", {distinct({2, 3, 5, 5})},
        {{"kernel_size", two},
         {"stride", two},
         {"padding", zero},
         {"dilation", one},
         {"ceil_mode", false},
         {"in_plane", in_plane}});
  add("max_pool2d_values", {distinct({2, 3, 5, 5})},
      {{"kernel_size", two}, {"stride", two}, {"padding", zero}, {"dilation", one}, {"ceil_mode", false}});
  add("max_pool2d_backward", {x({2, 3, 2, 2}), ints({2, 3, 2, 2}, 0, 3, uint8)},
      {{"kernel_size", two}, {"stride", two}, {"padding", zero}, {"dilation", one}, {"shape", Dims{2, 3, 5, 5}}});
  add("max_pool2d_gather", {x({2, 3, 4, 4}), ints({2, 3, 2, 2}, 0, 3, uint8)},
      {{"kernel_size", Dims{2, 2}}, {"stride", Dims{2, 2}}, {"padding", Dims{0, 0}}, {"dilation", Dims{1, 1}}});
  // Places that are in both windows.
  add("max_pool2d_gather", {x({2, 3, 3, 4}), ints({2, 3, 2, 1}, 4, 7)},
      {{"kernel_size", Dims{2, 4}}, {"stride", Dims{1, 1}}, {"padding", Dims{0, 0}}, {"dilation", Dims{1, 1}}});
  add("avg_pool1d", {x({2, 3, 7})}, {{"kernel_size", Dims{3}}, {"padding", Dims{1}}, {"count_include_pad", false}});
  add("avg_pool2d", {x({2, 3, 5, 5})}, {{"kernel_size", two}});
  add("avg_pool2d", {x({2, 3, 5, 5})},
      {{"kernel_size", three}, {"stride", two}, {"padding", one}, {"count_include_pad", false}});
  add("avg_pool2d", {x({3, 5, 5})},
      {{"kernel_size", three}, {"stride", two}, {"ceil_mode", true}, {"divisor_override", 5}});
  add("avg_pool3d", {x({2, 2, 4, 3, 3})},
      {{"kernel_size", Dims{2, 2, 2}}, {"padding", Dims{1, 1, 0}}, {"divisor_override", 3}});
  Attributes windows{{"kernel_size", two},        {"stride", two}, {"padding", zero}, {"ceil_mode", false},
                     {"count_include_pad", true}, {"divisor", 0}};
  add("avg_pool2d_windows", {x({2, 3, 5, 5})}, windows);
  windows.push_back({"shape", Dims{2, 3, 5, 5}});
  add("avg_pool2d_backward", {x({2, 3, 2, 2})}, windows);
  add("adaptive_avg_pool1d", {x({2, 3, 7})}, {{"output_size", Dims{3}}});
  add("adaptive_avg_pool2d", {x({2, 3, 5, 4})}, {{"output_size", three}});
  add("adaptive_avg_pool3d", {x({2, 2, 4, 5, 3})}, {{"output_size", Dims{2, 3, 2}}});
  add("adaptive_avg_windows", {x({2, 3, 5, 4})}, {{"output_size", three}});
  add("adaptive_avg_backward", {x({2, 3, 3, 3})}, {{"shape", Dims{2, 3, 5, 4}}});
  add("adaptive_max_pool1d", {distinct({2, 3, 7})}, {{"output_size", Dims{3}}});
  add("adaptive_max_pool2d", {distinct({2, 3, 5, 4})}, {{"output_size", three}});
  add("adaptive_max_pool3d", {distinct({2, 2, 4, 5, 3})}, {{"output_size", Dims{2, 3, 2}}});
  add("adaptive_max_windows", {distinct({2, 3, 5, 4})}, {{"output_size", three}});
  add("lp_pool1d", {x({2, 3, 7}, 0.1, 2)}, {{"norm_type", 3.0}, {"kernel_size", Dims{3}}});
  add("lp_pool2d", {x({2, 3, 5, 4})}, {{"norm_type", 2.0}, {"kernel_size", two}});
});

}  // namespace holon::testing
