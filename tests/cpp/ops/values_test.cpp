#include "holon/ops/values.h"

#include <gtest/gtest.h>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/operators.h"

namespace holon {
namespace {

TEST(Values, NumbersAsTheyStandInAProgram) {
  EXPECT_EQ(tensor({1, 2, 3}).dtype(), int64);
  EXPECT_EQ(tensor({1.5, 2.0}).dtype(), float32);
  EXPECT_EQ(tensor({true, false}).dtype(), boolean);
  EXPECT_EQ(tensor(2.5).shape(), Dims{});
  EXPECT_EQ(to_vector<float>(tensor({{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}})), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tensor({{1, 2}, {3, 4}, {5, 6}}).shape(), (Dims{3, 2}));
  EXPECT_EQ(tensor({1, 2}, {.dtype = float64}).dtype(), float64);
  Tensor w = tensor({1.0, 2.0}, {.requires_grad = true});
  EXPECT_TRUE(w.requires_grad() && w.is_leaf());
  EXPECT_THROW(tensor({{1, 2}, {3}}), Error);
  EXPECT_THROW(tensor({1, 2}, {.requires_grad = true}), Error);
  EXPECT_THROW(tensor({1, 2}, {.placement = Placement("cpu", {0})}), Error);
}

TEST(Values, ABufferKeepsItsType) {
  std::vector<double> v{1, 2, 3, 4, 5, 6};
  Tensor x = tensor(v, {2, 3});
  EXPECT_EQ(x.dtype(), float64);
  v[0] = 9;  // x owns a copy
  EXPECT_EQ(to_vector<double>(x), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(to_vector<int64_t>(x.transpose(0, 1)), (std::vector<int64_t>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(to_vector<float>(tensor(std::vector<float>{}, {0, 3})), std::vector<float>{});
  EXPECT_THROW(tensor(v, {2, 2}), Error);
  EXPECT_THROW(tensor(v, {-2, -3}), Error);
}

TEST(Values, EachRankKeepsItsPart) {
  comm::run_ranks(3, [](int rank) {
    Placement p("cpu", {0, 2});
    Tensor x = tensor({{1, 2}, {3, 4}, {5, 6}}, {.placement = p, .sbp = sbp::split(0)});
    EXPECT_EQ(x.shape(), (Dims{3, 2}));
    EXPECT_EQ(to_vector<int64_t>(x), (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(rank == 1 ? 0 : x.to_local().shape()[0], std::vector<int64_t>({2, 0, 1})[static_cast<size_t>(rank)]);
    Tensor addends = tensor({7.0}, {.placement = p, .sbp = sbp::partial_sum()});
    EXPECT_EQ(to_vector<float>(addends), std::vector<float>{7});
    EXPECT_THROW(tensor({1, 2}, {.placement = p, .sbp = sbp::split(1)}), Error);
  });
}

TEST(Values, NumbersOnTheLeft) {
  Tensor x = tensor({1.0, 2.0, 4.0}, {.requires_grad = true});
  EXPECT_EQ(to_vector<float>(1 - x), (std::vector<float>{0, -1, -3}));
  EXPECT_EQ(to_vector<float>(4 / x), (std::vector<float>{4, 2, 1}));
  EXPECT_EQ(to_vector<float>(2.0 * x + (3 + x)), (std::vector<float>{6, 9, 15}));
  (8 / x - 3 * x).sum().backward();
  EXPECT_EQ(to_vector<float>(x.grad()), (std::vector<float>{-11, -5, -3.5}));
}

}  // namespace
}  // namespace holon
