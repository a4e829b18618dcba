// Activations, and their gradients as ops.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op :
       {"mish", "quick_gelu", "logsigmoid", "softsign", "hardsigmoid", "hardswish", "selu", "leaky_relu", "elu", "celu",
        "softplus", "hardtanh", "relu6", "softshrink", "hardshrink", "tanhshrink"}) {
    add(op, {x({5, 3}, -4, 4)});
    add(op, {x({2, 1, 7}, -4, 4)});
  }
  add("leaky_relu", {x({5, 3})}, {{"negative_slope", 0.3}});
  add("elu", {x({5, 3})}, {{"alpha", 0.7}});
  add("celu", {x({5, 3})}, {{"alpha", 0.7}});
  add("softplus", {x({5, 3}, -4, 4)}, {{"beta", 2.0}, {"threshold", 3.0}}, false);  // it jumps at the threshold
  add("hardtanh", {x({5, 3})}, {{"min_val", -0.4}, {"max_val", 0.7}});
  add("threshold", {x({5, 3})}, {{"threshold", 0.3}, {"value", 4.0}});
  add("prelu", {x({5, 3}), x({3}, 0.1, 1)});
  add("prelu", {x({5, 3, 2}), x({1}, 0.1, 1)});
  add("prelu", {x({5, 3, 2}), x({3}, 0.1, 1)});
  add("glu", {x({5, 4})});
  add("glu", {x({6, 3})}, {{"dim", 0}});

  for (const char* op : {"relu_backward", "gelu_backward", "gelu_tanh_backward", "silu_backward", "tanh_backward",
                         "sigmoid_backward", "mish_backward", "quick_gelu_backward", "logsigmoid_backward",
                         "softsign_backward", "hardsigmoid_backward", "hardswish_backward", "selu_backward"})
    add(op, {x({5, 3}), x({5, 3}, -4, 4)});
  add("leaky_relu_backward", {x({5, 3}), x({5, 3})}, {{"negative_slope", 0.3}});
  add("elu_backward", {x({5, 3}), x({5, 3})}, {{"alpha", 0.7}});
  add("celu_backward", {x({5, 3}), x({5, 3})}, {{"alpha", 0.7}});
  add("softplus_backward", {x({5, 3}), x({5, 3})}, {{"beta", 1.5}, {"threshold", 20.0}});
  add("hardtanh_backward", {x({5, 3}), x({5, 3})}, {{"min_val", -0.4}, {"max_val", 0.7}});
  add("shrink_backward", {x({5, 3}), x({5, 3})}, {{"lambd", 0.5}});
  add("threshold_backward", {x({5, 3}), x({5, 3})}, {{"threshold", 0.3}});
});

}  // namespace holon::testing
