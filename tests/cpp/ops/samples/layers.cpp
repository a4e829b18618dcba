// Compositions behind layers.
#include <cmath>

#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("bilinear", {x({5, 3}), x({5, 4}), x({2, 3, 4}), x({2})});
  add("bilinear", {x({2, 5, 3}), x({2, 5, 4}), x({7, 3, 4}), none()});
  for (double p : {1.0, 2.0, 3.0}) add("pairwise_distance", {x({5, 3}), x({5, 3}, -3, 3)}, {{"p", p}});
  add("pairwise_distance", {x({2, 5, 3}), x({3}, -3, 3)}, {{"p", INFINITY}, {"keepdim", true}}, false);
  add("local_response_norm", {x({2, 5, 3})}, {{"size", 3}, {"alpha", 0.5}});
  add("local_response_norm", {x({2, 4, 3, 2})}, {{"size", 2}, {"alpha", 0.5}, {"beta", 0.5}, {"k", 2.0}});
  // Of one input, of three with separate weights; masks; weights.
  add("multi_head_attention",
      {x({2, 3, 4}), x({2, 3, 4}), x({2, 3, 4}), x({4, 4}), x({4}), x({12, 4}), none(), none(), none(), x({12}), none(),
       none()},
      {{"num_heads", 2}});
  add("multi_head_attention",
      {x({2, 3, 4}), x({2, 5, 3}), x({2, 5, 2}), x({4, 4}), none(), none(), x({4, 4}), x({4, 3}), x({4, 2}), none(),
       mask({3, 5}), none()},
      {{"num_heads", 2}, {"need_weights", true}}, false);
  add("multi_head_attention",
      {x({2, 3, 4}), x({2, 3, 4}), x({2, 3, 4}), x({4, 4}), none(), x({12, 4}), none(), none(), none(), none(),
       x({3, 3}), x({2, 3})},
      {{"num_heads", 4}, {"need_weights", true}, {"average_attn_weights", false}});
  add("orthonormalize", {x({3, 5})}, {}, false);
  add("orthonormalize", {x({5, 3})}, {}, false);
});

}  // namespace holon::testing
