// Products.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("matmul", {x({4, 5}), x({5, 8})});
  add("matmul", {x({5}), x({5, 3})});
  add("matmul", {x({4, 5}), x({5})});
  add("matmul", {x({2, 4, 5}), x({5, 3})});
  add("matmul_with", {x({4, 5}), x({3, 5})}, {{"transpose_b", true}, {"alpha", 0.5}});
  add("matmul_with", {x({2, 5, 4}), x({5, 3})}, {{"transpose_a", true}});
  add("matmul", {x({3, 4, 5}), x({3, 5, 2})});
  add("matmul", {x({3, 1, 4, 5}), x({2, 5, 2})});
  add("matmul", {x({4, 0}), x({0, 3})});
  add("linear", {x({4, 5}), x({3, 5}), x({3})});
  add("linear", {x({2, 4, 5}), x({3, 5}), none()});
  add("linear", {x({5}), x({3, 5}), x({3})});
  add("linear_weight_grad", {x({4, 3}), x({4, 5})});
  add("linear_weight_grad", {x({2, 4, 3}), x({2, 4, 5})});
  add("linear_gradients", {x({4, 3}), x({4, 5})});
  add("linear_gradients", {x({2, 4, 3}), x({2, 4, 5})});
});

}  // namespace holon::testing
