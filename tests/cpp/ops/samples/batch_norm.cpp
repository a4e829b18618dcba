// Normalisation of channels, of rows by their root, and of vectors.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  Attributes training{{"training", true}};
  add("batch_norm", {x({5, 3}), none(), none(), x({3}), x({3})}, training);
  add("batch_norm", {x({2, 3, 5}), x({3}), x({3}, 0.5, 2), x({3}), none()}, training, false);
  add("batch_norm", {x({3, 5, 2, 2}), none(), none(), none(), x({5})}, training);
  add("batch_norm", {x({2, 3, 2, 2, 3}), none(), none(), none(), none()}, training);
  add("batch_norm", {x({4, 3, 2}), x({3}), x({3}, 0.5, 2), x({3}), x({3})}, {}, false);
  add("batch_norm_stats", {x({5, 3})}, {}, false);
  add("batch_norm_stats", {x({2, 3, 5, 4})}, {}, false);
  Attributes moments{{"count", 100}, {"eps", 1e-5}, {"momentum", 0.1}, {"dtype", float32}};
  add("batch_norm_moments", {x({2, 5}, 20, 22, float64), x({5}), x({5}, 0.5, 2)}, moments, false);
  add("batch_norm_moments", {x({2, 3}, 20, 22, float64), none(), none()}, moments, false);
  for (int count : {0, 10}) {
    Attributes of{{"count", count}};
    add("batch_norm_apply", {x({5, 3}), x({3}), x({3}, 0.5, 2), x({3}), x({3})}, of, false);
    add("batch_norm_apply", {x({2, 3, 5}), x({3}), x({3}, 0.5, 2), x({3}), none()}, of, false);
    add("batch_norm_apply", {x({2, 3, 5}), x({3}), x({3}, 0.5, 2), none(), x({3})}, of, false);
    add("batch_norm_apply", {x({2, 3, 5, 3}), x({3}), x({3}, 0.5, 2), none(), none()}, of, false);
  }
  add("batch_norm_products", {x({5, 3}), x({5, 3}), x({3})}, {}, false);
  add("batch_norm_products", {x({2, 3, 5, 4}), x({2, 3, 5, 4}), x({3})}, {}, false);
  Attributes backward{{"count", 10}, {"dtype", float32}};
  add("batch_norm_backward", {x({5, 3}), x({5, 3}), x({3}), x({3}, 0.5, 2), x({3}), x({2, 3}, -2, 2, float64)},
      backward, false);
  add("batch_norm_backward", {x({2, 3, 5}), x({2, 3, 5}), x({3}), x({3}, 0.5, 2), none(), x({2, 3}, -2, 2, float64)},
      backward, false);
  add("batch_norm_weight_grad", {x({2, 3}, -2, 2, float64), x({3}, 0.5, 2)}, {{"dtype", float32}}, false);

  add("group_norm", {x({3, 4, 5}), x({4}), x({4})}, {{"num_groups", 2}});
  add("group_norm", {x({2, 6, 2, 2}), none(), x({6})}, {{"num_groups", 3}});
  add("group_norm", {x({5, 3, 2}), x({3}), none()}, {{"num_groups", 3}});
  add("group_norm", {x({5, 4}), none(), none()}, {{"num_groups", 1}});
  add("group_norm_stats", {x({3, 4, 5}), x({4}), x({4})}, {{"groups", 2}, {"eps", 1e-5}}, false);
  add("group_norm_stats", {x({3, 5, 4}), x({5}), none()}, {{"groups", 5}, {"eps", 1e-5}}, false);
  Attributes groups{{"groups", 2}, {"dtype", float32}};
  add("group_norm_backward", {x({3, 4, 5}), x({3, 4, 5}), x({3, 2}), x({3, 2}, 0.5, 2), x({4})}, groups);
  add("group_norm_backward", {x({3, 4, 5}), x({3, 4, 5}), x({3, 2}), x({3, 2}, 0.5, 2), none()}, groups);
  add("instance_norm", {x({3, 4, 5}), none(), none(), x({4}), x({4})});
  add("instance_norm", {x({2, 3, 2, 2}), x({3}), x({3}, 0.5, 2), none(), none()});
  add("instance_norm", {x({2, 3, 5}), x({3}), x({3}, 0.5, 2), none(), none()}, {{"use_input_stats", false}}, false);

  add("rms_norm", {x({5, 3}), x({3})}, {{"normalized_shape", Dims{3}}});
  add("rms_norm", {x({5, 2, 3}), none()}, {{"normalized_shape", Dims{2, 3}}, {"eps", 0.01}});
  add("rms_norm_stats", {x({5, 3}), x({3})}, {{"axes", 1}, {"eps", 1e-5}}, false);
  add("rms_norm_backward", {x({5, 3}), x({5, 3}), x({5}, 0.5, 2), x({3})}, {{"axes", 1}});
  add("normalize", {x({5, 3})});
  add("normalize", {x({2, 5, 3})}, {{"p", 1.0}, {"dim", -1}});
  add("normalize", {distinct({5, 3})}, {{"p", 3.0}, {"dim", 0}});
});

}  // namespace holon::testing
