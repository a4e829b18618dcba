// OneFlow's fused names.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  Attributes kept{{"p", 0.0}, {"fill_value", -3.0}, {"scale", 0.5}};
  add("fused_bias_add_gelu", {x({5, 3}), x({3})}, {{"axis", 1}});
  add("fused_bias_add_dropout", {x({5, 3, 2}), x({3})}, {{"axis", -2}, {"p", 0.0}});
  add("fused_fast_gelu_mul", {x({5, 3}), x({5, 3})});
  add("fused_scale_mask_softmax", {x({5, 3}), mask({5, 3})}, {{"fill_value", -3.0}, {"scale", 0.5}});
  add("fused_scale_mask_softmax_dropout", {x({2, 5, 3}), mask({5, 3})}, kept);
  add("fused_bias_add_scale_mask_softmax_dropout", {x({2, 5, 3}), x({3}), mask({5, 3})}, kept);
  add("fused_scale_tril", {x({2, 5, 3})}, {{"diagonal", 1}, {"fill_value", -2.0}, {"scale", 3.0}});
  add("fused_scale_tril_softmax_mask_scale", {x({2, 5, 3})}, {{"p", 0.0}, {"tril_scale_value", 2.0}});
  add("fused_self_attention", {x({3, 2, 12})}, {{"head_size", 2}, {"alpha", 0.5}});
  add("amp_white_identity", {x({5, 3})});
  add("amp_black_identity", {x({5, 3})});
});

}  // namespace holon::testing
