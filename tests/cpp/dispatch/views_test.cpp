// Writes into views while ops are recorded.
#include "holon/dispatch/views.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "holon/autograd/engine.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/indexing.h"
#include "holon/ops/operators.h"
#include "holon/ops/rearrange.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"
#include "holon/tensor/node.h"
#include "tests/cpp/error_of.h"

namespace holon {
namespace {

Tensor leaf() { return tensor({{1.0, 2.0, 3.0}, {4.0, 5.0, 6.0}}, {.dtype = float64, .requires_grad = true}); }

TEST(Views, AWriteReachesTheBase) {
  Tensor x = leaf(), y = x * 1.0;
  Tensor before = select(y, 1, 0);
  mul_(select(transpose(y, 0, 1), 0, 0), 3.0);
  copy_(select(y, 0, 1), select(y.detach(), 0, 0));
  EXPECT_TRUE(before.requires_grad());
  (y * y).sum().backward();
  // y is [3 x00, x01, x02] and a constant row.
  EXPECT_EQ(to_vector<double>(x.grad()), (std::vector<double>{18, 4, 6, 0, 0, 0}));
}

TEST(Views, KnowTheirBase) {
  Tensor y = zeros({2, 3}), row = select(y, 0, 0);
  EXPECT_TRUE(is_tracked_view(row));
  EXPECT_TRUE(base_of(row).is_same(y));
  EXPECT_FALSE(base_of(y).defined());
  EXPECT_FALSE(is_tracked_view(y.detach()));
  {
    NoGradGuard no_grad;
    EXPECT_FALSE(is_tracked_view(select(y, 0, 0)));
  }
  // A reshape that must copy is no view.
  EXPECT_FALSE(is_tracked_view(reshape(transpose(y, 0, 1), {6})));
}

TEST(Views, Refuse) {
  Tensor x = leaf();
  EXPECT_NE(error_of([&] { mul_(select(x, 0, 0), 2.0); }).find("of a leaf"), std::string::npos);
  Tensor y = x * 1.0, z = y * y;
  mul_(select(y, 0, 0), 2.0);
  EXPECT_NE(error_of([&] { z.sum().backward(); }).find("changed in place"), std::string::npos);
  EXPECT_NE(error_of([&] { add_(expand(ones({1, 3}), {2, 3}), 1.0); }).find("one place in memory"), std::string::npos);
}

TEST(Views, OfViewsWithoutEnd) {
  for (bool grad : {false, true}) {
    Tensor y = grad ? leaf() * 1.0 : zeros({2, 3}, {.dtype = float64});
    Tensor t = y;
    for (int i = 0; i < 200'000; ++i) t = transpose(t, 0, 1);
    EXPECT_NE(error_of([&] { mul_(t, leaf()); }).find("too many views"), std::string::npos);
    mul_(y, leaf());
    EXPECT_NE(error_of([&] { t.sum().backward(); }).find("not known"), std::string::npos);
  }
}

// Views are recorded again when they are used: not before, whatever else reads them meanwhile.
TEST(Views, SeeWritesWhenTheyAreUsed) {
  Tensor x = leaf(), y = x * 1.0;
  Tensor row = select(y, 0, 1), early = row * 1.0;
  const Ref<Node> before = row.impl()->grad_fn();
  {
    NoGradGuard no_grad;
    mul_(y, 1.0);
    EXPECT_EQ(row.impl()->grad_fn(), before);
  }
  mul_(y, 2.0);
  mul_(select(y, 1, 0), 5.0);
  {
    NoGradGuard no_grad;
    EXPECT_TRUE(row.requires_grad());
  }
  EXPECT_NE(row.impl()->grad_fn(), before);
  const Ref<Node> after = row.impl()->grad_fn();
  EXPECT_EQ(row.impl()->grad_fn(), after);
  (row.sum() + early.sum()).backward();
  EXPECT_EQ(to_vector<double>(x.grad()), (std::vector<double>{0, 0, 0, 11, 3, 3}));
}

// Nodes that are made when a view is looked at have numbers that do not depend on when that is, nor do later ones'.
TEST(Views, AreNumberedAlikeWheneverTheyAreUsed) {
  auto numbers = [](bool look) {
    Tensor x = leaf(), y = x * 1.0;
    Tensor part = slice(transpose(y, 0, 1), 0, 1, 3);
    mul_(y, 3.0);
    if (look) {
      EXPECT_TRUE(part.requires_grad() && !part.is_leaf());
    }
    const uint64_t start = y.impl()->grad_fn()->sequence;
    Tensor z = y * y, w = part * part;
    std::vector<uint64_t> found;
    for (const Tensor& t : {part, z, w}) found.push_back(t.impl()->grad_fn()->sequence - start);
    return found;
  };
  EXPECT_EQ(numbers(true), numbers(false));
}

TEST(Views, AreUsedBySeveralThreads) {
  for (int round = 0; round < 50; ++round) {
    Tensor x = leaf(), y = x * 1.0;
    Tensor view = slice(transpose(y, 0, 1), 0, 1, 3);
    mul_(y, 3.0);
    std::vector<std::thread> threads;
    std::vector<Tensor> results(4);
    for (size_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { results[i] = (view * static_cast<double>(i)).sum(); });
    for (auto& t : threads) t.join();
    (results[0] + results[1] + results[2] + results[3]).backward();
    EXPECT_EQ(to_vector<double>(x.grad()), (std::vector<double>{0, 18, 18, 0, 18, 18}));
  }
}

// A view along a split axis needs the other ranks' parts, and is a copy.
TEST(Views, ThatAreCopiesAreNotWrittenTo) {
  comm::run_ranks(2, [](int) {
    const Placement placement = Placement::all("cpu");
    for (bool recording : {false, true}) {
      NoGradGuard mode(recording);
      Tensor x = place(leaf().detach(), placement, NdSbp{sbp::split(0)}).detach();
      Tensor row = select(x, 0, 1), rows = slice(x, 0, 0, 1), inner = slice(rows, 1, 0, 2);
      for (const Tensor& t : {row, rows, inner, row.detach()})
        EXPECT_NE(error_of([&] { mul_(t, 2.0); }).find("is a copy, not a view"), std::string::npos);
      EXPECT_NE(error_of([&] { index_put_(rows, {0}, 2.0); }).find("is a copy, not a view"), std::string::npos);
      add_(clone(row), 1.0);
      add_(contiguous(row), 1.0);
      add_(reshape(place(leaf().detach(), placement, NdSbp{sbp::split(1)}), {6}), 1.0);  // which may copy
      mul_(slice(x, 1, 1, 3), 10.0);
      index_put_(x, {1}, 7.0);
      EXPECT_EQ(to_vector<double>(x), (std::vector<double>{1, 20, 30, 7, 7, 7}));
    }
  });
}

TEST(Views, OfGlobalTensors) {
  comm::run_ranks(2, [](int) {
    const Placement placement = Placement::all("cpu");
    for (Sbp s : {sbp::split(0), sbp::split(1), sbp::broadcast()}) {
      Tensor x = place(leaf().detach(), placement, NdSbp{s}).detach();
      x.set_requires_grad();
      Tensor y = x * 1.0, t = transpose(y, 0, 1);
      if (s == sbp::split(0))
        mul_(slice(t, 0, 0, 1), 3.0);
      else
        mul_(slice(y, 0, 0, 1), 3.0);
      (t * t).sum().backward();
      const std::vector<double> want =
          s == sbp::split(0) ? std::vector<double>{18, 4, 6, 72, 10, 12} : std::vector<double>{18, 36, 54, 8, 10, 12};
      EXPECT_EQ(to_vector<double>(x.grad()), want) << s.str();
    }
  });
}

}  // namespace
}  // namespace holon
