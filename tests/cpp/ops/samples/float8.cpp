#include "sample.h"

namespace holon::testing {
namespace {

// What rounding computes is a step function, whose gradient passes as if it were not.
Samples samples([](const Samples::Add& add) {
  for (DType dtype : {float8_e4m3fn, float8_e5m2}) {
    add("round_float8", {x({5, 3})}, {{"dtype", dtype}}, false);
    add("round_float8", {x({4, 2, 5})}, {{"dtype", dtype}, {"rows", int64_t{2}}, {"columns", int64_t{2}}}, false);
    add("round_float8_by", {x({5, 3}), x({}, 2, 3)}, {{"dtype", dtype}}, false);
    add("round_float8_blocks", {x({3, 4, 6})}, {{"dtype", dtype}, {"rows", int64_t{1}}, {"columns", int64_t{3}}},
        false);
    add("round_float8_blocks", {x({4, 6})}, {{"dtype", dtype}, {"rows", int64_t{2}}, {"columns", int64_t{2}}}, false);
    add("float8_scale", {x({5, 3})}, {{"dtype", dtype}});
    add("float8_scale_of", {x({}, 2, 3)}, {{"dtype", dtype}});
    add("quantize_float8", {x({5, 3}), x({}, 2, 3)}, {{"dtype", dtype}});
    add("scaled_mm", {x({5, 4}, -2, 2, dtype), x({4, 3}, -2, 2, float8_e4m3fn), x({}, 1, 2), x({}, 1, 2)},
        {{"out_dtype", float32}});
    add("round_gradient", {x({5, 3})}, {{"dtype", dtype}}, false);
  }
  add("view_dtype", {x({5, 3})}, {{"dtype", int32}});
  add("view_dtype", {x({5, 3}, -2, 2, float8_e5m2)}, {{"dtype", uint8}});
});

}  // namespace
}  // namespace holon::testing
