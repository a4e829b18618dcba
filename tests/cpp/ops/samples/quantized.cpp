// Weights in groups of integers.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("quantize_groups", {x({5, 3, 8}, -1, 1)}, {{"bits", int64_t{4}}});
  add("quantize_groups", {x({4, 6, 5}, -1, 1)}, {{"bits", int64_t{8}}});
  // Bytes whose last two are a scale between 0.01 and 1.
  const auto blocks = [](Dims shape) { return ints(shape, 60, 63, uint8); };
  add("dequantize_groups", {blocks({5, 3, 6})}, {{"bits", int64_t{4}}, {"dtype", float32}});
  add("dequantize_groups", {blocks({4, 7})}, {{"bits", int64_t{8}}, {"dtype", float64}});
  add("quantized_linear", {x({3, 4, 8}), blocks({6, 4, 6}), x({6})}, {{"bits", int64_t{4}}});
  add("quantized_linear", {x({2, 3, 4, 5}), blocks({7, 4, 7}), none()}, {{"bits", int64_t{8}}});
  add("quantized_linear_input", {x({3, 6}), blocks({6, 4, 6})}, {{"bits", int64_t{4}}});
  add("quantized_linear_input", {x({2, 3, 7}), blocks({7, 4, 7})}, {{"bits", int64_t{8}}});
  // More rows than are multiplied by what is in registers.
  add("quantized_linear", {x({17, 2, 4}), blocks({3, 2, 4}), x({3})}, {{"bits", int64_t{4}}});
});

}  // namespace holon::testing
