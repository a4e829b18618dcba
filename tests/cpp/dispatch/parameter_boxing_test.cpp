// Split parameters stay where they are: ops redistribute their other inputs, and tell where they cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holon/boxing/events.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/record.h"
#include "holon/nn/linear.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/to_global.h"
#include "holon/ops/unary.h"

namespace holon::testing {
namespace {

using boxing::ParameterPolicy;
using sbp::broadcast;
using sbp::partial_sum;
using sbp::split;

Placement four() { return Placement("cpu", {0, 1, 2, 3}); }

Tensor value(const Dims& shape, const NdSbp& sbp, int64_t draw, double scale = 1) {
  NoGradGuard guard;
  RandnOptions o{.placement = four(), .sbp = sbp};
  o.seed = 7;
  o.counter = draw;
  return (randn(shape, o) * Scalar(scale)).detach();
}
Tensor weight(const Dims& shape, const NdSbp& sbp, int64_t draw) {
  return value(shape, sbp, draw, 0.2).set_requires_grad();
}

double difference(const Tensor& a, const Tensor& b) {
  NoGradGuard guard;
  return amax(abs(a.full() - b.full())).item().as_double();
}

struct Mlp {
  std::vector<Tensor> up, bias, down;
  Mlp(int blocks, int64_t width, bool divided) {
    auto sbp = [&](int axis) { return divided ? NdSbp(split(axis)) : NdSbp(broadcast()); };
    for (int b = 0; b < blocks; ++b) {
      up.push_back(weight({4 * width, width}, sbp(0), 10 * b));
      bias.push_back(weight({4 * width}, sbp(0), 10 * b + 1));
      down.push_back(weight({width, 4 * width}, sbp(1), 10 * b + 2));
    }
  }
  Tensor operator()(Tensor x) const {
    for (size_t b = 0; b < up.size(); ++b) x = x + linear(gelu(linear(x, up[b], bias[b])), down[b]);
    return x;
  }
};

// Tokens outnumber features by far, so that whole weights would be the least to move.
constexpr int64_t kTokens = 600, kWidth = 16;

TEST(ParameterBoxing, TensorParallelBlocksGatherNone) {
  comm::run_ranks(4, [](int) {
    auto moved = [](Mlp& mlp, Tensor* loss) {
      boxing::reset_boxing_counters();
      Tensor y = mlp(value({kTokens, kWidth}, broadcast(), 500));
      *loss = mean(y * y);
      loss->backward();
      return boxing::boxing_counters().parameters;
    };
    Mlp divided(8, kWidth, true), whole(8, kWidth, false), gathered(8, kWidth, true);
    Tensor loss, truth, other;
    EXPECT_EQ(moved(divided, &loss), 0);
    moved(whole, &truth);
    {
      boxing::ParameterPolicyGuard gather(ParameterPolicy::kGather);
      EXPECT_GT(moved(gathered, &other), 8) << "the policy makes no difference";
    }
    EXPECT_LE(difference(loss, truth), 1e-4);
    EXPECT_LE(difference(other, truth), 1e-4);
    for (auto list : {&Mlp::up, &Mlp::bias, &Mlp::down})
      for (size_t b = 0; b < 8; ++b) {
        const Tensor g = (whole.*list)[b].grad();
        EXPECT_LE(difference((divided.*list)[b].grad(), g), 1e-4) << b;
        EXPECT_LE(difference((gathered.*list)[b].grad(), g), 1e-4) << b;
        EXPECT_EQ((divided.*list)[b].grad().spec(), (divided.*list)[b].spec());
      }
  });
}

TEST(ParameterBoxing, FrozenOnesAndWindowsOnThemStayAsWell) {
  comm::run_ranks(4, [](int) {
    const Tensor x = value({kTokens, kWidth}, split(0), 1);
    auto moved = [&](auto f) {
      boxing::reset_boxing_counters();
      f();
      EXPECT_GT(boxing::boxing_counters().moves, 0);
      return boxing::boxing_counters().parameters;
    };
    // Frozen: what LoRA adds its own weights to.
    Tensor base = weight({kWidth, kWidth}, split(0), 2), a = weight({4, kWidth}, broadcast(), 3),
           b = weight({kWidth, 4}, broadcast(), 4);
    base.set_requires_grad(false);
    EXPECT_TRUE(is_parameter(base));
    EXPECT_FALSE(is_parameter(x));
    EXPECT_EQ(moved([&] {
                Tensor y = linear(x, base) + linear(linear(x, a), b);
                sum(y * y).backward();
              }),
              0);
    // A module's, frozen from the start.
    nn::Linear layer(kWidth, kWidth, {.placement = four(), .sbp = split(0)});
    layer.requires_grad_(false);
    EXPECT_EQ(moved([&] { layer(x); }), 0);
    // A transposed one, in another dtype, with and without recording.
    Tensor w = weight({kWidth, kWidth}, split(0), 5);
    EXPECT_EQ(moved([&] { matmul(x, transpose(w, 0, 1)); }), 0);
    NoGradGuard guard;
    EXPECT_EQ(moved([&] { matmul(x, transpose(w, 0, 1)); }), 0);
    EXPECT_EQ(moved([&] { matmul(x.to(float64), transpose(w.to(float64), 0, 1)); }), 0);
    // What is computed from one is none.
    EXPECT_FALSE(is_parameter(w * Scalar(2.0)));
    EXPECT_FALSE(is_parameter(w.detach()));
  });
}

TEST(ParameterBoxing, LookupsInASplitTableMoveIndices) {
  comm::run_ranks(4, [](int) {
    const Tensor indices = remainder(arange(400), int64_t{64}).to(int64);
    for (int axis : {0, 1}) {
      Tensor table = weight({64, 8}, split(axis), 1);
      Tensor at = to_global(to_global(indices, four(), {broadcast()}), four(), {split(0)});
      boxing::reset_boxing_counters();
      Tensor rows = embedding(table, at);
      sum(rows * rows).backward();
      EXPECT_EQ(boxing::boxing_counters().parameters, 0) << axis;
      EXPECT_EQ(table.grad().spec(), table.spec());
    }
  });
}

TEST(ParameterBoxing, WhereNothingElseWillDoItIsToldOnce) {
  ::testing::internal::CaptureStderr();
  comm::run_ranks(4, [](int) {
    // The sizes of a norm cannot be divided.
    Tensor x = value({8, kWidth}, split(0), 1), gamma = weight({kWidth}, split(0), 2);
    for (int i = 0; i < 3; ++i) {
      boxing::reset_boxing_counters();
      Tensor y = layer_norm(x, Dims{kWidth}, gamma);
      EXPECT_EQ(boxing::boxing_counters().parameters, 1);
      EXPECT_TRUE(boxing::recent_events().back().parameter);
      sum(y * y).backward();
      // The copy was not kept: backward makes one of its own.
      EXPECT_EQ(boxing::boxing_counters().parameters, 2);
      EXPECT_EQ(gamma.grad().spec(), gamma.spec());
    }
  });
  const std::string told = ::testing::internal::GetCapturedStderr();
  size_t lines = 0;
  for (size_t at = told.find("a parameter is redistributed"); at != std::string::npos;
       at = told.find("a parameter is redistributed", at + 1))
    ++lines;
  EXPECT_LE(lines, 2u) << told;  // one for forward's op, one for backward's
  EXPECT_GE(lines, 1u) << told;
  EXPECT_THAT(told, ::testing::HasSubstr("parameter_policy"));
}

TEST(ParameterBoxing, BackwardOfAGatheredOneKeepsNoCopy) {
  comm::run_ranks(4, [](int) {
    Tensor x = value({kTokens, kWidth}, split(0), 1).set_requires_grad(), w = weight({kWidth, kWidth}, split(0), 2);
    Tensor y;
    {
      boxing::ParameterPolicyGuard gather(ParameterPolicy::kGather);
      boxing::reset_boxing_counters();
      y = linear(x, w);
      EXPECT_EQ(boxing::boxing_counters().parameters, 1);
    }
    ASSERT_EQ(y.nd_sbp(), NdSbp(split(0)));
    // Backward goes by the policy of forward.
    sum(y * y).backward();
    EXPECT_EQ(boxing::boxing_counters().parameters, 2);
  });
}

TEST(ParameterBoxing, ATableThatWasCutIsNotGatheredInBackward) {
  comm::run_ranks(4, [](int) {
    // A rotary table, which every rank has, beside queries that are split along the same axis.
    Tensor q = value({2, 8, 4}, split(1), 1).set_requires_grad(), table = value({8, 4}, broadcast(), 2);
    Tensor y = q * table;
    ASSERT_EQ(y.nd_sbp(), NdSbp(split(1)));
    boxing::reset_boxing_counters();
    y.backward(value({2, 8, 4}, partial_sum(), 3));
    for (auto& e : boxing::recent_events()) EXPECT_FALSE(e.shape == table.shape() && e.max_bytes > 0) << e.str();
  });
}

TEST(ParameterBoxing, ALeafOfPartialSumsIsSummedOnce) {
  comm::run_ranks(4, [](int) {
    Tensor p = value({8, 8}, partial_sum(), 1).set_requires_grad();
    boxing::reset_boxing_counters();
    Tensor y = p * p;
    EXPECT_EQ(boxing::boxing_counters().parameters, 0);
    sum(y).backward();
    for (auto& e : boxing::recent_events()) EXPECT_FALSE(e.parameter) << e.str();
    EXPECT_EQ(boxing::boxing_counters().moves, 1) << "one factor, and not again in backward";
  });
}

TEST(ParameterBoxing, Policies) {
  EXPECT_EQ(boxing::parse_parameter_policy("gather"), ParameterPolicy::kGather);
  EXPECT_THROW(boxing::parse_parameter_policy("often"), Error);
  comm::run_ranks(1, [](int) {
    EXPECT_EQ(boxing::parameter_policy(), ParameterPolicy::kKeep);
    {
      boxing::ParameterPolicyGuard guard(ParameterPolicy::kGather);
      EXPECT_EQ(boxing::parameter_policy(), ParameterPolicy::kGather);
    }
    EXPECT_EQ(boxing::parameter_policy(), ParameterPolicy::kKeep);
  });
}

}  // namespace
}  // namespace holon::testing
