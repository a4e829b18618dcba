// Images read at places between their pixels.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* mode : {"bilinear", "nearest", "bicubic"})
    for (const char* padding : {"zeros", "border", "reflection"})
      for (bool corners : {false, true})
        add("grid_sample", {x({2, 3, 4, 3}), x({2, 2, 5, 2}, -1.5, 1.5)},
            {{"mode", mode}, {"padding_mode", padding}, {"align_corners", corners}});
  for (const char* mode : {"bilinear", "nearest"})
    add("grid_sample", {x({2, 2, 2, 3, 4}), x({2, 1, 2, 3, 3}, -1.5, 1.5)},
        {{"mode", mode}, {"padding_mode", "border"}});
  add("sample_taps", {x({3, 5, 7}), x({3, 5, 2}), ints({3, 5, 2}, -1, 6)});
  add("sample_taps_input", {x({3, 5, 4}), x({3, 4, 2}), ints({3, 4, 2}, -1, 6)}, {{"places", 7}});
  add("sample_taps_weight", {x({3, 5, 4}), x({3, 5, 7}), ints({3, 4, 2}, -1, 6)});
  for (bool corners : {false, true}) {
    add("affine_grid", {x({3, 2, 3})}, {{"size", Dims{3, 1, 2, 5}}, {"align_corners", corners}});
    add("affine_grid", {x({2, 3, 4})}, {{"size", Dims{2, 1, 2, 1, 3}}, {"align_corners", corners}});
  }
});

}  // namespace holon::testing
