// Norms.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* op : {"softmax", "log_softmax"}) {
    add(op, {x({5, 3})});
    add(op, {x({2, 5, 3})}, {{"dim", 1}});
    add(std::string(op) + "_backward", {x({5, 3}), x({5, 3}, 0.1, 0.9)}, {{"dim", -1}});
  }
  add("layer_norm", {x({5, 3}), x({3}), x({3})}, {{"normalized_shape", Dims{3}}});
  add("layer_norm", {x({5, 2, 3}), x({2, 3}), none()}, {{"normalized_shape", Dims{2, 3}}});
  add("layer_norm", {x({5, 7}), none(), none()}, {{"normalized_shape", Dims{7}}});
  add("layer_norm_stats", {x({5, 3}), x({3}), x({3})}, {{"axes", 1}, {"eps", 1e-5}}, false);
  add("layer_norm_backward", {x({5, 3}), x({5, 3}), x({5}), x({5}, 0.5, 2), x({3})}, {{"axes", 1}});
});

}  // namespace holon::testing
