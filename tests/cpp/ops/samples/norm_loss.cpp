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
  add("layer_norm_backward", {x({2, 4, 3}), x({2, 4, 3}), x({2, 4}), x({2, 4}, 0.5, 2), none()}, {{"axes", 1}});
  add("layer_norm_plain_backward", {x({5, 3}), x({5, 3}), x({5}), x({5}, 0.5, 2)}, {{"axes", 1}});
  add("layer_norm_plain_backward", {x({5, 4, 3}), x({5, 4, 3}), x({5}), x({5}, 0.5, 2)}, {{"axes", 2}});
  const Attributes row{{"axes", 1}, {"eps", 1e-5}, {"dtype", float32}};
  const Attributes rows{{"axes", 2}, {"eps", 1e-5}, {"dtype", float32}};
  add("add_layer_norm", {x({5, 3}), x({5, 3}), x({3}), x({3})}, row);
  add("add_layer_norm", {x({5, 4, 3}), x({5, 4, 3}), x({4, 3}), none()}, rows);
  add("add_layer_norm", {x({5, 4, 3}), x({5, 4, 3}), none(), none()}, row);
  add("layer_norm_backward_add", {x({5, 3}), x({5, 3}), x({5}), x({5}, 0.5, 2), x({3}), x({5, 3})}, {{"axes", 1}});
  add("layer_norm_backward_add", {x({2, 4, 3}), x({2, 4, 3}), x({2, 4}), x({2, 4}, 0.5, 2), none(), x({2, 4, 3})},
      {{"axes", 1}});
  add("add_rms_norm", {x({5, 3}), x({5, 3}), x({3})}, row);
  add("add_rms_norm", {x({2, 4, 3}), x({2, 4, 3}), none()}, row);
  add("rms_norm_backward_add", {x({5, 3}), x({5, 3}), x({5}, 0.5, 2), x({3}), x({5, 3})}, {{"axes", 1}});
  add("rms_norm_backward_add", {x({2, 4, 3}), x({2, 4, 3}), x({2, 4}, 0.5, 2), none(), x({2, 4, 3})}, {{"axes", 1}});
});

}  // namespace holon::testing
