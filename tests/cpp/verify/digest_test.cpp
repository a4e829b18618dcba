#include "holon/verify/digest.h"

#include <gtest/gtest.h>

#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/optim/optimizer.h"

namespace holon::verify {
namespace {

uint64_t digest_of_training(double lr, double last_target) {
  const Placement p("cpu", {0, 1});
  const Digest digest;
  Tensor w = ones({4, 3}, {.placement = p, .sbp = sbp::split(0), .requires_grad = true});
  optim::SGD sgd({w}, {.lr = lr});
  for (int step = 0; step < 2; ++step) {
    sum(w * w - w * Scalar(step == 1 ? last_target : 1.0)).backward();
    sgd.step();
    sgd.zero_grad();
  }
  return digest.value();
}

TEST(Digest, IsOfTheBitsOfGradientsAndParameters) {
  comm::run_ranks(2, [](int) {
    const uint64_t value = digest_of_training(0.1, 1.0);
    EXPECT_EQ(digest_of_training(0.1, 1.0), value);
    EXPECT_NE(digest_of_training(0.11, 1.0), value);
    EXPECT_NE(digest_of_training(0.1, 1.0 + 1e-6), value);
    EXPECT_EQ(observer(), nullptr);
  });
}

}  // namespace
}  // namespace holon::verify
