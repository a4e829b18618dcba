#include "cases.h"

#include <cstdlib>
#include <utility>

#include "samples/sample.h"

namespace holon::testing {

Samples::Samples(void (*declare)(const Add&)) {
  declare({[](std::string op, std::vector<Input> in, Attributes attrs, bool differences) {
    all().push_back({std::move(op), std::move(in), std::move(attrs), differences});
  }});
}

std::vector<Case>& Samples::all() {
  static std::vector<Case> list;
  return list;
}

const std::vector<Case>& cases() { return Samples::all(); }

const std::vector<Exempt>& exempt_ops() {
  static const std::vector<Exempt> list{
      {"empty", "its values are unset"},
      {"empty_like", "its values are unset"},
      {"pin_memory", "needs a device: tests/cuda/test_pinned.py"},
      {"same_on_device", "the half of to_device that moves nothing, which has cases"},
      {"to_global", "moves between layouts: autograd_test, boxing_test"},
      {"to_local", "moves between layouts: autograd_test"},
      {"rand", "random_test"},
      {"randn", "random_test"},
      {"randint", "random_test"},
      {"randperm", "random_test"},
      {"normal", "random_test"},
      {"normal_of_size", "test_random.py"},
      {"randint_below", "test_random.py"},
      {"normal_fill", "random_test"},
      {"uniform_fill", "random_test"},
      {"trunc_normal_fill", "random_test"},
      {"bernoulli_fill", "random_test"},
      {"random_fill", "random_test"},
      {"bernoulli", "random_test"},
      {"bernoulli_of", "random_test"},
      {"multinomial", "random_test"},
      {"randint_like", "random_test"},
      {"dropout1d", "random_test"},
      {"dropout2d", "random_test"},
      {"dropout3d", "random_test"},
      {"alpha_dropout", "random_test"},
      {"feature_alpha_dropout", "random_test"},
      {"rand_like", "random_test"},
      {"randn_like", "random_test"},
      {"dropout", "random_test"},
      {"dropout_mask", "random_test"},
      {"round_float8_delayed", "which element of amax a rank raises depends on the layout: test_delayed_scaling.py"},
      {"quantize_float8_delayed", "as round_float8_delayed: tests/cuda/test_float8.py"},
  };
  return list;
}

const char* test_device() {
  const char* name = std::getenv("HOLON_TEST_DEVICE");
  return name && *name ? name : "cpu";
}

}  // namespace holon::testing
