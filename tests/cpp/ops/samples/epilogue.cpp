// Products with what follows them.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("linear_then", {x({4, 5}), x({3, 5}), x({3}), none()}, {{"then", "relu"}});
  add("linear_then", {x({2, 4, 5}), x({3, 5}), none(), none()}, {{"then", "gelu"}});
  add("linear_then", {x({5}), x({3, 5}), x({3}), none()}, {{"then", "gelu_tanh"}});
  add("linear_then", {x({2, 4, 5}), x({3, 5}), x({3}), x({2, 4, 3})}, {{"then", "add"}});
  add("linear_then", {x({4, 5}), x({3, 5}), none(), x({4, 3})}, {{"then", "mul"}});
  add("linear_then", {x({4, 0}), x({3, 0}), x({3}), x({4, 3})}, {{"then", "add"}});
  add("linear_gelu", {x({4, 5}), x({3, 5}), x({3})}, {{"approximate", "none"}});
  add("linear_gelu", {x({2, 4, 5}), x({3, 5}), none()}, {{"approximate", "tanh"}});
  add("matmul_then", {x({4, 5}), x({5, 3}), x({4, 3})}, {{"then", "mul"}});
  add("matmul_then", {x({2, 4, 5}), x({5, 3}), x({2, 4, 3})}, {{"then", "add"}});
  add("matmul_then", {x({4, 5}), x({5, 3}), x({4, 3})}, {{"then", "relu_backward"}});
  add("matmul_scaled", {x({4, 5}), x({5, 3})}, {{"alpha", 0.5}});
  add("matmul_scaled", {x({3, 1, 4, 5}), x({2, 5, 2})}, {{"alpha", -2.0}});
});

}  // namespace holon::testing
