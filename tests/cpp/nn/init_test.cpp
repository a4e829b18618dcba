#include "holon/nn/init.h"

#include <gtest/gtest.h>

#include "holon/dispatch/random_state.h"
#include "holon/nn/linear.h"
#include "holon/ops/create.h"
#include "holon/ops/values.h"

namespace holon::nn {
namespace {

TEST(Init, NothingIsDrawnWhileASkipGuardExists) {
  const std::vector<float> zero(4, 0);
  const Tensor a = zeros({2, 2}), b = zeros({2, 2}), c = zeros({2, 2});
  manual_seed(1);
  {
    const init::SkipGuard outer;
    {
      const init::SkipGuard inner;
      init::normal_(a);
    }
    init::uniform_(a, 1, 2);
    init::constant_(a, 3);
    init::trunc_normal_(a, 5);
    init::xavier_uniform_(a);
    const Linear layer(2, 2);
    EXPECT_EQ(layer.weight.shape(), (Dims{2, 2}));
  }
  EXPECT_EQ(to_vector<float>(a), zero);
  init::normal_(b);
  manual_seed(1);
  init::normal_(c);
  EXPECT_NE(to_vector<float>(b), zero);
  EXPECT_EQ(to_vector<float>(b), to_vector<float>(c));  // the guard has drawn nothing
}

}  // namespace
}  // namespace holon::nn
