// Gradients summed in the background have the bits of those summed one by one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "holon/autograd/buckets.h"
#include "holon/autograd/engine.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/activation.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::autograd {
namespace {

struct Setting {
  const char* name;
  Setting(const char* n, const std::string& value) : name(n) { setenv(n, value.c_str(), 1); }
  ~Setting() { unsetenv(name); }
};

using Bits = std::vector<std::vector<std::byte>>;  // each gradient's part

Bits parts_of(const std::vector<Tensor>& leaves) {
  Bits bits;
  for (auto& leaf : leaves) {
    Tensor g = leaf.grad();
    EXPECT_TRUE(g.defined());
    EXPECT_EQ(g.spec(), leaf.spec());
    EXPECT_EQ(g.dtype(), leaf.dtype());
    bits.emplace_back();
    if (!g.array().defined()) continue;
    EXPECT_TRUE(g.array().is_contiguous());
    bits.back().assign(g.array().bytes(), g.array().bytes() + g.array().nbytes());
  }
  return bits;
}

// Runs a program on n ranks without and with the background and several sizes of buckets; its leaves' gradients are
// alike.
void expect_same(const std::vector<int>& host_of_rank, const std::function<std::vector<Tensor>()>& program) {
  const size_t n = host_of_rank.size();
  auto run = [&] {
    std::vector<Bits> all(n);
    std::vector<comm::CommStats> stats(n);
    comm::run_ranks(host_of_rank, [&](int rank) {
      manual_seed(7);
      all[static_cast<size_t>(rank)] = parts_of(program());
      stats[static_cast<size_t>(rank)] = comm::stats();
    });
    return std::pair(all, stats);
  };
  Setting off("HOLON_OVERLAP", "0");
  auto [expected, stats] = run();
  Setting on("HOLON_OVERLAP", "1");
  for (const char* mib : {"0.00001", "0.01", "0.2", "100"}) {
    Setting bucket("HOLON_GRADIENT_BUCKET_MB", mib);
    for (int repeat = 0; repeat < 3; ++repeat) {
      auto [got, counted] = run();
      for (size_t r = 0; r < got.size(); ++r) {
        EXPECT_EQ(got[r], expected[r]) << "rank " << r << ", buckets of " << mib << " MiB";
        EXPECT_LE(counted[r].bytes_read, stats[r].bytes_read) << "rank " << r << ", buckets of " << mib << " MiB";
      }
    }
  }
}

void expect_same(int n, const std::function<std::vector<Tensor>()>& program) {
  expect_same(std::vector<int>(static_cast<size_t>(n), 0), program);
}

// A stack of products of a split batch, with weights of different sizes; all are leaves.
std::vector<Tensor> stack(const Placement& p, const NdSbp& x_sbp, const NdSbp& w_sbp, DType dtype = float32) {
  std::vector<Tensor> leaves;
  Tensor x = randn({1500, 40}, {.placement = p, .sbp = x_sbp, .dtype = dtype});
  int64_t width = 40;
  for (int64_t next : {300, 16, 200, 200, 30}) {
    Tensor w = randn({width, next}, {.placement = p, .sbp = w_sbp, .dtype = dtype}).set_requires_grad();
    Tensor b = randn({next}, {.placement = p, .sbp = NdSbp::filled(w_sbp.size(), sbp::broadcast()), .dtype = dtype})
                   .set_requires_grad();
    x = tanh(matmul(x, w) * 0.1 + b);
    leaves.push_back(w), leaves.push_back(b);
    width = next;
  }
  x.sum().backward();
  return leaves;
}

TEST(Overlap, TakesSumsAndKeepsTheOrder) {
  Setting on("HOLON_OVERLAP", "1"), bucket("HOLON_GRADIENT_BUCKET_MB", "0.001");
  comm::run_ranks(2, [](int) {
    Placement p = Placement::all("cpu");
    auto make = [&](const Dims& shape, Sbp s) { return full(shape, 1.0, {.placement = p, .sbp = s}); };
    std::vector<Tensor> leaves;
    for (int64_t n : {100, 200, 300, 5}) leaves.push_back(make({n}, sbp::broadcast()));
    leaves.push_back(make({64}, sbp::split(0)));
    GradientBuckets buckets;
    EXPECT_FALSE(buckets.take(*leaves[0].impl(), make({100}, sbp::broadcast())));  // no sum
    EXPECT_FALSE(buckets.take(*full({3}, 1.0, {}).impl(), full({3}, 1.0, {})));    // local
    for (auto& leaf : leaves) EXPECT_TRUE(buckets.take(*leaf.impl(), make(leaf.shape(), sbp::partial_sum())));
    EXPECT_TRUE(buckets.holds(*leaves[1].impl()));
    buckets.put(*leaves[1].impl(), make({200}, sbp::broadcast()));
    std::vector<TensorImpl*> order;
    buckets.finish([&](TensorImpl& leaf, Tensor g) {
      order.push_back(&leaf);
      EXPECT_EQ(g.spec(), leaf.spec);
      EXPECT_EQ(g.shape(), leaf.shape);
      Tensor whole = g.full();
      for (float v : whole.data<float>()) ASSERT_EQ(v, 1.f);
    });
    std::vector<TensorImpl*> expected;
    for (auto& leaf : leaves) expected.push_back(leaf.impl());
    expected.push_back(leaves[1].impl());
    EXPECT_EQ(order, expected);
    EXPECT_FALSE(buckets.holds(*leaves[1].impl()));
  });
}

TEST(Overlap, DataParallel) {
  for (int n : {2, 3}) expect_same(n, [] { return stack(Placement::all("cpu"), sbp::split(0), sbp::broadcast()); });
}

TEST(Overlap, SeveralHosts) {
  auto program = [] { return stack(Placement::all("cpu"), sbp::split(0), sbp::broadcast()); };
  expect_same(std::vector<int>{0, 0, 1}, program);
  expect_same(std::vector<int>{0, 1}, program);
}

TEST(Overlap, HalfPrecision) {
  expect_same(2, [] { return stack(Placement::all("cpu"), sbp::split(0), sbp::broadcast(), bfloat16); });
}

TEST(Overlap, WeightsThatAreSplit) {
  expect_same(3, [] { return stack(Placement::all("cpu"), sbp::split(0), sbp::split(0)); });
}

TEST(Overlap, GridOfRanks) {
  auto grid = [] { return Placement("cpu", Dims{2, 2}, {0, 1, 2, 3}); };
  expect_same(4, [&] {
    return stack(grid(), NdSbp({sbp::split(0), sbp::split(0)}), NdSbp({sbp::broadcast(), sbp::broadcast()}));
  });
  expect_same(4, [&] {
    return stack(grid(), NdSbp({sbp::split(0), sbp::broadcast()}), NdSbp({sbp::broadcast(), sbp::split(1)}));
  });
}

TEST(Overlap, RanksOutsideThePlacement) {
  expect_same(3, [] { return stack(Placement("cpu", {0, 2}), sbp::split(0), sbp::broadcast()); });
}

TEST(Overlap, SharedAndHookedLeavesAndSecondRuns) {
  expect_same(2, [] {
    Placement p = Placement::all("cpu");
    Tensor x = randn({400, 50}, {.placement = p, .sbp = sbp::split(0)});
    auto weight = [&] { return randn({50, 50}, {.placement = p, .sbp = sbp::broadcast()}).set_requires_grad(); };
    Tensor shared = weight(), hooked = weight(), plain = weight();
    hooked.register_hook([](const Tensor& g) { return g * 3.0; });
    for (int run = 0; run < 2; ++run) {
      Tensor y = tanh(matmul(x, shared));
      y = tanh(matmul(y, hooked));
      y = tanh(matmul(y, shared));
      y = tanh(matmul(y, plain));
      // The last term's gradient is no sum over the ranks: it keeps its place among those that are.
      (y.sum() + (shared * 0.3).sum() + matmul(y, shared).sum()).backward();
    }
    return std::vector<Tensor>{shared, hooked, plain};
  });
}

TEST(Overlap, ASecondDerivativeIsNotDeferred) {
  expect_same(2, [] {
    Placement p = Placement::all("cpu");
    Tensor x = randn({200, 20}, {.placement = p, .sbp = sbp::split(0)});
    Tensor w = randn({20, 20}, {.placement = p, .sbp = sbp::broadcast()}).set_requires_grad();
    square(matmul(x, w)).sum().backward({}, false, true);
    Tensor first = w.grad();
    w.set_grad({});
    square(first).sum().backward();
    return std::vector<Tensor>{w};
  });
}

TEST(Overlap, AFailureInTheMiddleLeavesTheRanksTogether) {
  Setting on("HOLON_OVERLAP", "1"), bucket("HOLON_GRADIENT_BUCKET_MB", "0.00001");
  comm::run_ranks(2, [](int) {
    Placement p = Placement::all("cpu");
    Tensor x = randn({400, 50}, {.placement = p, .sbp = sbp::split(0)});
    Tensor a = randn({50, 50}, {.placement = p, .sbp = sbp::broadcast()}).set_requires_grad();
    Tensor b = randn({50, 50}, {.placement = p, .sbp = sbp::broadcast()}).set_requires_grad();
    bool fails = true;
    a.register_hook([&](const Tensor& g) -> Tensor {
      if (fails) fail_runtime("the hook is off its hinges");
      return g;
    });
    auto loss = [&] { return matmul(matmul(x, a), b).sum(); };
    EXPECT_THROW(loss().backward(), Error);
    EXPECT_FALSE(b.grad().defined());
    fails = false;
    loss().backward();
    EXPECT_TRUE(a.grad().defined() && b.grad().defined());
  });
}

TEST(Overlap, ABucketHasASize) {
  Setting on("HOLON_OVERLAP", "1"), bucket("HOLON_GRADIENT_BUCKET_MB", "0");
  try {
    comm::run_ranks(2, [](int) { stack(Placement::all("cpu"), sbp::split(0), sbp::broadcast()); });
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("HOLON_GRADIENT_BUCKET_MB"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace holon::autograd
