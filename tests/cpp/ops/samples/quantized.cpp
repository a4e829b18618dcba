// Weights in groups of small numbers.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("quantize_groups", {x({5, 3, 8}, -1, 1)}, {{"format", "int4"}});
  add("quantize_groups", {x({4, 6, 5}, -1, 1)}, {{"format", "int8"}});
  // Bytes whose last two are a scale between 0.01 and 1.
  const auto blocks = [](Dims shape) { return ints(shape, 60, 63, uint8); };
  add("dequantize_groups", {blocks({5, 3, 6})}, {{"format", "int4"}, {"dtype", float32}});
  add("dequantize_groups", {blocks({4, 7})}, {{"format", "int8"}, {"dtype", float64}});
  add("quantized_linear", {x({3, 4, 8}), blocks({6, 4, 6}), x({6})}, {{"format", "int4"}});
  add("quantized_linear", {x({2, 3, 4, 5}), blocks({7, 4, 7}), none()}, {{"format", "int8"}});
  // Bytes whose last one is a scale between 2^-7 and 2^3.
  add("quantize_groups", {x({5, 3, 32}, -1, 1)}, {{"format", "mxfp4"}});
  add("dequantize_groups", {ints({5, 3, 17}, 120, 130, uint8)}, {{"format", "mxfp4"}, {"dtype", float32}});
  add("quantized_linear", {x({3, 4, 32}), ints({6, 4, 17}, 120, 130, uint8), none()}, {{"format", "mxfp4"}});
  // Experts as in experts.cpp, of 4 inputs and 8 hidden units in groups of 4.
  const Input gate = blocks({3, 8, 1, 4}), down = blocks({3, 4, 2, 4});
  add("quantized_expert_swiglu", {x({3, 5, 4}, -1, 1), ints({3, 5, 2}, -1, 2), x({3, 5, 2}, 0.1, 1), gate, gate, down},
      {{"format", "int4"}});
  add("quantized_expert_swiglu", {x({7, 4}, -1, 1), ints({7, 1}, 0, 2), x({7, 1}, 0.1, 1), gate, gate, down},
      {{"format", "int4"}});
  add("quantized_linear_input", {x({3, 6}), blocks({6, 4, 6})}, {{"format", "int4"}});
  add("quantized_linear_input", {x({2, 3, 7}), blocks({7, 4, 7})}, {{"format", "int8"}});
  add("quantized_linear_input", {x({3, 6}), ints({6, 4, 17}, 120, 130, uint8)}, {{"format", "mxfp4"}});
  // More rows than are multiplied by what is in registers.
  add("quantized_linear", {x({17, 2, 4}), blocks({3, 2, 4}), x({3})}, {{"format", "int4"}});
});

}  // namespace holon::testing
