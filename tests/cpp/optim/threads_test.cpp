// Threads that a program starts itself: next to each other in one process, and inside of a rank (ContextHandoff).
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/context_handoff.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/dispatch.h"
#include "holon/nn/activation.h"
#include "holon/nn/containers.h"
#include "holon/nn/linear.h"
#include "holon/ops/create.h"
#include "holon/ops/loss.h"
#include "holon/ops/matmul.h"
#include "holon/ops/operators.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/values.h"
#include "holon/optim/optimizer.h"
#include "tests/cpp/error_of.h"

namespace holon {
namespace {

using comm::ContextHandoff;

template <class F>
void in_thread(F&& f) {
  std::jthread(std::forward<F>(f)).join();
}

// The loss after some steps of a small network, from a seed.
float train(uint64_t seed, Placement placement = {}) {
  manual_seed(seed);
  const Tensor x = placement ? randn({32, 4}, {.placement = placement, .sbp = sbp::broadcast()}) : randn({32, 4});
  const Tensor target = sum(x * x, 1, true);
  auto linear = [&](int64_t in, int64_t out, Sbp s) {
    return placement ? nn::Linear(in, out, {.placement = placement, .sbp = s}) : nn::Linear(in, out);
  };
  nn::Sequential net{linear(4, 16, sbp::split(0)), nn::Tanh(), linear(16, 1, sbp::split(1))};
  optim::AdamW adam(net.parameters(), {.lr = 0.01});
  float loss = 0;
  for (int step = 0; step < 20; ++step) {
    adam.zero_grad();
    Tensor l = mse_loss(net(x), target);
    l.backward();
    adam.step();
    loss = l.item<float>();
  }
  return loss;
}

TEST(Threads, EachTrainsAsIfAlone) {
  constexpr size_t kThreads = 4;
  std::vector<float> alone, together(kThreads);
  for (size_t i = 0; i < kThreads; ++i) alone.push_back(train(i));
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { together[i] = train(i); });
  }
  EXPECT_EQ(together, alone);
}

TEST(Threads, ModesAndRandomNumbersAreTheThreads) {
  NoGradGuard no_grad;
  AutocastGuard autocast;
  std::vector<float> first, second;
  in_thread([&] {
    EXPECT_TRUE(grad_enabled());
    EXPECT_FALSE(Context::current().autocast());
    Tensor w = ones({2}).set_requires_grad();
    (w * 3).sum().backward();
    EXPECT_EQ(to_vector<float>(w.grad()), (std::vector<float>{3, 3}));
    first = to_vector<float>(rand({4}));
    set_grad_enabled(false);
  });
  in_thread([&] {
    EXPECT_TRUE(grad_enabled());
    second = to_vector<float>(rand({4}));
  });
  EXPECT_NE(first, second);
  EXPECT_NE(first, to_vector<float>(rand({4})));
  EXPECT_FALSE(grad_enabled());
  in_thread([&] {
    manual_seed(7);
    first = to_vector<float>(rand({4}));
  });
  manual_seed(7);
  EXPECT_EQ(first, to_vector<float>(rand({4})));
}

// Nodes that several threads have recorded are gone through in the right order, whoever counts further.
TEST(Threads, AGraphThatSeveralThreadsRecorded) {
  Tensor w = tensor({2.0}).set_requires_grad(), y = w;
  for (int i = 0; i < 20; ++i) y = y * 1.0;
  in_thread([&] { y = y * y; });
  Tensor z = y * w;  // w^3
  in_thread([&] {
    Tensor u = z + z;
    u = u * 1.0;
    u.sum().backward();
  });
  EXPECT_EQ(to_vector<float>(w.grad()), std::vector<float>{24});
}

TEST(Threads, AHandedRankCommunicatesNextToItsOwnThread) {
  constexpr int kRanks = 2, kTimes = 200;
  comm::run_ranks(kRanks, [&](int rank) {
    ContextHandoff first, second;
    const auto everyone = Placement::all("cpu").ranks();
    auto work = [&](float start) {
      for (int i = 0; i < kTimes; ++i) {
        float x = start + static_cast<float>(rank + i), sum = 0;
        comm::communicator(everyone).all_reduce(&x, &sum, 1, float32);
        ASSERT_EQ(sum, 2 * start + static_cast<float>(1 + 2 * i));
      }
    };
    std::jthread one([&] {
      auto scope = first.enter();
      EXPECT_EQ(Context::current().rank(), rank);
      work(1000);
    });
    std::jthread two([&] {
      auto scope = second.enter();
      work(2000);
    });
    work(0);
  });
}

TEST(Threads, AHandedRankTrains) {
  float alone = 0;
  comm::run_ranks(2, [&](int rank) {
    const float loss = train(5, Placement::all("cpu"));
    if (rank == 0) alone = loss;
  });
  comm::run_ranks(2, [&](int) {
    ContextHandoff handoff;
    float loss = 0, own = 0;
    {
      std::jthread worker([&] {
        auto scope = handoff.enter();
        loss = train(5, Placement::all("cpu"));
      });
      own = train(5, Placement::all("cpu"));
    }
    EXPECT_EQ(loss, alone);
    EXPECT_EQ(own, alone);
  });
}

TEST(Threads, AHandoffGoesOnWhereItWasLeft) {
  comm::run_ranks(2, [&](int rank) {
    ContextHandoff handoff;
    std::vector<float> drawn;
    for (int i = 0; i < 3; ++i)
      in_thread([&] {
        auto scope = handoff.enter();
        drawn.push_back(rand({1}).item<float>());
        float x = static_cast<float>(rank), sum = 0;
        comm::communicator(Placement::all("cpu").ranks()).all_reduce(&x, &sum, 1, float32);
        EXPECT_EQ(sum, 1);
      });
    EXPECT_NE(drawn[0], drawn[1]);
    EXPECT_NE(drawn[1], drawn[2]);
    manual_seed(3);
    ContextHandoff seeded, same;
    std::vector<float> values;
    for (auto* h : {&seeded, &same})
      in_thread([&] {
        auto scope = h->enter();
        values.push_back(rand({1}).item<float>());
      });
    EXPECT_NE(values[0], values[1]);
    EXPECT_NE(values[0], rand({1}).item<float>());
  });
}

TEST(Threads, MistakesRaise) {
  comm::run_ranks(2, [&](int) {
    ContextHandoff handoff;
    auto scope = handoff.enter();
    EXPECT_NE(error_of([&] { auto again = handoff.enter(); }).find("Make one for each thread"), std::string::npos);
    EXPECT_NE(error_of([] { ContextHandoff nested; }).find("has been handed to itself"), std::string::npos);
  });
  // A thread of a process that took no rank is of the process's own, which is alone here.
  comm::run_ranks(2, [&](int) { in_thread([] { EXPECT_EQ(Context::current().world_size(), 1); }); });
}

}  // namespace
}  // namespace holon
