// Padding, interpolation, rearrangements of images.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("pad", {x({5, 3})}, {{"pad", Dims{1, 2}}});
  add("pad", {x({2, 3, 5})}, {{"pad", Dims{-1, 2, 0, 0, 1, -1}}, {"value", 1.5}});
  add("pad", {ints({5, 3}, 0, 9)}, {{"pad", Dims{1, 2}}, {"value", 7}});
  add("pad", {ints({5, 3}, 0, 9)}, {{"pad", Dims{1, 2}}, {"mode", "replicate"}});
  for (const char* mode : {"reflect", "replicate", "circular"}) {
    add("pad", {x({2, 3, 5, 4})}, {{"pad", Dims{1, 2, 3, -1}}, {"mode", mode}});
    add("resample", {x({3, 5, 2})}, {{"dim", 1}, {"size", 8}, {"mode", mode}, {"scale", 1.0}, {"before", 2}});
    add("resample_backward", {x({3, 8, 2})}, {{"dim", 1}, {"size", 5}, {"mode", mode}, {"scale", 1.0}, {"before", 2}});
  }
  Dims none{0, 0}, both{1, 2}, cut{-1, 0};
  add("pad_constant", {x({5, 3})}, {{"before", Dims{0, 1}}, {"after", Dims{0, 2}}, {"value", 0}});
  add("pad_constant", {x({5, 3})}, {{"before", Dims{0, 1}}, {"after", Dims{0, 2}}, {"value", 2.5}});
  add("pad_constant", {x({5, 4})}, {{"before", Dims{0, -1}}, {"after", Dims{0, -1}}, {"value", 2.5}});
  for (const char* mode : {"nearest", "nearest-exact", "linear", "area"})
    add("interpolate", {x({2, 3, 5})}, {{"size", Dims{7}}, {"mode", mode}});
  for (const char* mode : {"nearest", "bilinear", "bicubic", "area"})
    add("interpolate", {x({2, 3, 4, 5})}, {{"size", Dims{6, 3}}, {"mode", mode}});
  add("interpolate", {x({2, 3, 4, 5})}, {{"scale_factor", 1.7}, {"mode", "bilinear"}});
  add("interpolate", {x({2, 3, 4, 5})}, {{"scale_factor", 2.0}, {"mode", "bicubic"}, {"align_corners", true}});
  add("interpolate", {x({2, 2, 2, 3, 2})}, {{"size", Dims{3, 4, 5}}, {"mode", "trilinear"}, {"align_corners", true}});
  for (const char* mode : {"linear", "cubic-corners"}) {
    add("resample", {x({3, 5, 2})}, {{"dim", 1}, {"size", 8}, {"mode", mode}, {"scale", 0.6}, {"before", 0}});
    add("resample_backward", {x({3, 8})}, {{"dim", 1}, {"size", 5}, {"mode", mode}, {"scale", 0.6}, {"before", 0}});
  }
  add("pixel_shuffle", {x({2, 8, 2, 3})}, {{"upscale_factor", 2}});
  add("pixel_unshuffle", {x({2, 2, 4, 6})}, {{"downscale_factor", 2}});
  add("channel_shuffle", {x({2, 6, 3})}, {{"groups", 2}});
  Dims one{1, 1}, two{2, 2}, zero{0, 0};
  add("unfold", {x({2, 3, 4, 5})}, {{"kernel_size", two}, {"padding", one}, {"stride", Dims{1, 2}}});
  add("unfold", {x({3, 4, 5})}, {{"kernel_size", two}, {"dilation", two}});
  add("fold", {x({2, 8, 6})}, {{"output_size", Dims{3, 4}}, {"kernel_size", two}});
  add("fold", {x({8, 4})}, {{"output_size", Dims{4, 4}}, {"kernel_size", two}, {"stride", two}});
  Attributes windows{{"kernel_size", two}, {"dilation", one}, {"padding", zero}, {"stride", one}};
  add("im2col", {x({2, 4, 3, 4})}, windows);
  windows.push_back({"shape", Dims{2, 4, 3, 4}});
  add("col2im", {x({2, 16, 6})}, windows);
});

}  // namespace holon::testing
