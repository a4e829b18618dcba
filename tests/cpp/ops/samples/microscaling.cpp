#include "sample.h"

namespace holon::testing {
namespace {

Samples samples([](const Samples::Add& add) {
  for (DType dtype : {float8_e4m3fn, float8_e5m2}) {
    add("quantize_mx", {x({3, 64})}, {{"dtype", dtype}});
    add("quantize_mx", {x({2, 3, 32})}, {{"dtype", dtype}});
    add("dequantize_mx", {x({3, 64}, -2, 2, dtype), x({3, 2}, 1, 4, float8_e8m0fnu)}, {{"dtype", float32}});
  }
  add("quantize_mxfp4", {x({3, 64})});
  add("quantize_mxfp4", {x({2, 3, 32})});
  add("dequantize_mxfp4", {ints({3, 2, 16}, 0, 255, uint8), x({3, 2}, 1, 4, float8_e8m0fnu)}, {{"dtype", float32}});
  add("dequantize_mxfp4", {ints({2, 3, 1, 16}, 0, 255, uint8), ints({2, 3, 1}, 120, 130, uint8)},
      {{"dtype", bfloat16}});
});

}  // namespace
}  // namespace holon::testing
