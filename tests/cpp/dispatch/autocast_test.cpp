// Regions of automatic casts: who is cast to what, caching, gradients, and that every class is a class of ops that
// exist.
#include "holon/dispatch/autocast.h"

#include <gtest/gtest.h>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/activation.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"
#include "holon/registry/op_def.h"

namespace holon {
namespace {

TEST(Autocast, CastsByClass) {
  Tensor x = ones({4, 4}), d = ones({4, 4}, {.dtype = float64});
  EXPECT_FALSE(Context::current().autocast());
  {
    AutocastGuard region;
    EXPECT_EQ(matmul(x, x).dtype(), bfloat16);
    EXPECT_EQ(matmul(d, d).dtype(), float64);
    EXPECT_EQ(matmul(x, x.to(bfloat16)).dtype(), bfloat16);
    EXPECT_EQ(sum(matmul(x, x)).dtype(), float32);
    EXPECT_EQ(relu(matmul(x, x)).dtype(), bfloat16);
    EXPECT_EQ((matmul(x, x) + x).dtype(), float32);
    std::vector<Tensor> mixed{matmul(x, x), x};
    EXPECT_EQ(cat(mixed, 0).dtype(), float32);
    {
      AutocastGuard inner(float16);
      EXPECT_EQ(matmul(x, x).dtype(), float16);
      AutocastGuard off(bfloat16, false);
      EXPECT_FALSE(Context::current().autocast());
      EXPECT_EQ(matmul(x, x).dtype(), float32);
    }
    EXPECT_EQ(matmul(x, x).dtype(), bfloat16);
    EXPECT_THROW(AutocastGuard wrong(float32), Error);
    EXPECT_EQ(autocast_mode().depth, 1);
  }
  EXPECT_FALSE(Context::current().autocast());
  EXPECT_EQ(matmul(x, x).dtype(), float32);
}

TEST(Autocast, CastsALeafOnceAndGradientsReachIt) {
  Tensor w = ones({4, 4}).set_requires_grad(), x = ones({4, 4});
  AutocastGuard region;
  Tensor a = matmul(x, w), b = matmul(x, w);
  EXPECT_EQ(a.impl()->grad_fn()->edges[1].node, b.impl()->grad_fn()->edges[1].node);
  sum(a).backward();
  EXPECT_EQ(w.grad().dtype(), float32);
  EXPECT_EQ(to_vector<float>(w.grad())[0], 4);
  EXPECT_TRUE(Context::current().autocast());
  sum(matmul(x, w)).backward();  // a new cast: the first one's node was freed
  EXPECT_EQ(to_vector<float>(w.grad())[0], 8);
  Tensor y = sum(matmul(x, w));
  {
    AutocastGuard off(bfloat16, false);
    y.backward();
  }
  sum(matmul(x, w)).backward();
  EXPECT_EQ(to_vector<float>(w.grad())[0], 16);
}

TEST(Autocast, BelongsToARank) {
  comm::run_ranks(2, [](int rank) {
    AutocastGuard region(bfloat16, rank == 0);
    Tensor x = ones({2, 2});
    EXPECT_EQ(matmul(x, x).dtype(), rank == 0 ? bfloat16 : float32);
  });
}

TEST(Autocast, GlobalTensorsToo) {
  comm::run_ranks(2, [](int) {
    Placement p = Placement::all("cpu");
    Tensor x = ones({3, 4}, {.placement = p, .sbp = sbp::split(0)}),
           w = ones({4, 5}, {.placement = p, .sbp = sbp::broadcast(), .requires_grad = true});
    AutocastGuard region;
    Tensor y = matmul(x, w);
    EXPECT_EQ(y.dtype(), bfloat16);
    EXPECT_EQ(y.nd_sbp(), NdSbp(sbp::split(0)));
    sum(y).backward();
    EXPECT_EQ(w.grad().nd_sbp(), w.nd_sbp());
    EXPECT_EQ(to_vector<float>(w.grad())[0], 3);
  });
}

TEST(Autocast, MainOpsHaveTheirClass) {
  for (const char* op : {"matmul", "linear", "conv2d"}) EXPECT_EQ(find_op(op).autocast, Autocast::kLower) << op;
  for (const char* op : {"softmax", "log_softmax", "nll_loss", "layer_norm", "sum", "mean", "exp", "mse_loss"})
    EXPECT_EQ(find_op(op).autocast, Autocast::kFloat32) << op;
  for (const char* op : {"cat", "where"}) EXPECT_EQ(find_op(op).autocast, Autocast::kPromote) << op;
  for (const char* op : {"relu", "cross_entropy"}) EXPECT_EQ(find_op(op).autocast, Autocast::kNone) << op;
}

TEST(Autocast, OnlyOpsOfSeveralTensorsBringThemToOneDtype) {
  for (auto* op : all_ops()) {
    if (op->autocast == Autocast::kPromote) {
      EXPECT_TRUE(op->schema.n_inputs > 1 || op->schema.input_list) << op->name();
    }
  }
}

TEST(Autocast, ANumberInPlaceOfATensorChangesNoClass) {
  for (auto* op : all_ops()) {
    if (const OpDef* number = try_find_op(std::string(op->name()) + "_scalar")) {
      EXPECT_EQ(op->autocast == Autocast::kFloat32, number->autocast == Autocast::kFloat32) << op->name();
    }
  }
}

}  // namespace
}  // namespace holon
