// What goes on around the steps of a graph: last batches of another size, eager steps in between, numbers of
// micro-batches, inference, and the memory of activations in flight.
#include <gtest/gtest.h>

#include <set>

#include "graph/training_models.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/nn_graph.h"
#include "holon/graph/step.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::graph {
namespace {

using models::Layout;
using models::Net;

constexpr Layout kOne{"1"}, kPipeline{.name = "pp2", .pp = 2}, kData{.name = "dp2", .dp = 2},
    kBoth{.name = "dp2 x pp2", .dp = 2, .pp = 2};

Tensor on(const Tensor& local, const Layout& layout) {
  return local.to_global(layout.placement(0), layout.whole()).to_global(layout.placement(0), layout.batch());
}

struct Train : nn::Graph {
  Net net;
  optim::AdamW optimizer;
  explicit Train(Net n)
      : net(placed(std::move(n))), optimizer(net.parameters(), {.lr = 0.01, .eps = 1e-4, .weight_decay = 0.01}) {
    for (size_t p = 0; p < net.parts.size(); ++p) {
      register_module("part" + std::to_string(p), net.parts[p]);
      if (net.layout.stages() > 1) set_stage(net.parts[p], net.stage(p));
    }
    add_optimizer(optimizer);
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor l = net.loss(in[0], in[1]);
    l.backward();
    return {l};
  }
  double step(int i, int64_t rows = models::kRows) {
    auto [x, y] = net.data(i);
    return mean((*this)(on(slice(x, 0, 0, rows), net.layout), on(slice(y, 0, 0, rows), net.layout))[0])
        .item()
        .as_double();
  }
  double eager_step(int i, int64_t rows = models::kRows) {
    auto [x, y] = net.data(i);
    Tensor l = net.loss(on(slice(x, 0, 0, rows), net.layout), on(slice(y, 0, 0, rows), net.layout));
    l.backward();
    optimizer.step();
    optimizer.zero_grad();
    return l.item().as_double();
  }

 private:
  static Net placed(Net n) {
    n.place();
    return n;
  }
};

Net plain(const Layout& layout) {
  manual_seed(5);
  return models::unet(layout);  // draws nothing, so that micro-batches make no difference
}

void expect_near(const std::vector<double>& want, const std::vector<double>& got) {
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(want[i], got[i], 2e-5) << "step " << i;
}

TEST(Epochs, LastBatchesOfAnotherSize) {
  const std::vector<int64_t> rows{8, 8, 4, 8, 8, 4, 8};
  for (auto& layout : {kOne, kData, kPipeline, kBoth})
    for (int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, ZeRO {}", layout.name, zero));
      comm::run_ranks(layout.ranks(), [&](int) {
        std::vector<double> want, got;
        {
          Train eager(plain(layout));
          for (size_t i = 0; i < rows.size(); ++i) want.push_back(eager.eager_step(static_cast<int>(i), rows[i]));
        }
        Train train(plain(layout));
        train.config.set_gradient_accumulation_steps(2);
        train.config.enable_zero(zero > 0, zero);
        train.config.verify();
        for (size_t i = 0; i < rows.size(); ++i) got.push_back(train.step(static_cast<int>(i), rows[i]));
        EXPECT_EQ(train.n_signatures(), 2u);
        expect_near(want, got);
      });
    }
}

TEST(Epochs, EagerStepsInBetween) {
  for (auto& layout : {kOne, kData, kBoth})
    for (int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, ZeRO {}", layout.name, zero));
      comm::run_ranks(layout.ranks(), [&](int) {
        std::vector<double> want, got;
        {
          Train eager(plain(layout));
          for (int i = 0; i < 8; ++i) want.push_back(eager.eager_step(i));
        }
        Train train(plain(layout));
        train.config.enable_zero(zero > 0, zero);
        for (int i = 0; i < 8; ++i) got.push_back(i % 3 == 2 ? train.eager_step(i) : train.step(i));
        expect_near(want, got);
      });
    }
}

TEST(Epochs, StateOfAShardedOptimizerIsThatOfAWholeOne) {
  for (int zero : {1, 2, 3})
    comm::run_ranks(2, [&](int) {
      Train eager(plain(kData));
      for (int i = 0; i < 3; ++i) eager.eager_step(i);
      Train train(plain(kData));
      train.config.enable_zero(true, zero);
      for (int i = 0; i < 3; ++i) train.step(i);
      auto want = eager.state_dict(), got = train.state_dict();
      auto compare = [&](auto& a, auto& b) {
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i) {
          Tensor x = a[i].second.full(), y = b[i].second.full();
          ASSERT_EQ(x.shape(), y.shape());
          EXPECT_LE(max(abs(sub(x, y))).item().as_double(), 1e-6) << a[i].first << " under ZeRO " << zero;
        }
      };
      compare(want.modules, got.modules);
      compare(want.optimizers[0].tensors, got.optimizers[0].tensors);
      // Another graph goes on from it.
      Train next(plain(kData));
      next.config.enable_zero(true, zero);
      next.load_state_dict(got);
      EXPECT_NEAR(next.step(3), train.step(3), 1e-6);
      EXPECT_NEAR(next.step(4), train.step(4), 1e-6);
    });
}

TEST(Epochs, NumbersOfMicroBatches) {
  std::vector<double> want;
  comm::run_ranks(1, [&](int) {
    Train eager(plain(kOne));
    for (int i = 0; i < 3; ++i) want.push_back(eager.eager_step(i));
  });
  for (auto& layout : {kOne, kPipeline})
    for (int n = 1; n <= 8; ++n)
      for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1"}) {
        if (layout.pp == 1 && n > 1 && std::string(schedule) != "1f1b") continue;
        SCOPED_TRACE(fmt::format("{}, {} micro-batches, {}", layout.name, n, schedule));
        comm::run_ranks(layout.ranks(), [&](int) {
          Train train(plain(layout));
          train.config.set_gradient_accumulation_steps(n);
          train.config.set_schedule(schedule);
          if (models::kRows % n) {
            EXPECT_THROW(train.step(0), Error);
            return;
          }
          std::vector<double> got;
          for (int i = 0; i < 3; ++i) got.push_back(train.step(i));
          expect_near(want, got);
        });
      }
}

TEST(Epochs, Inference) {
  struct Predict : nn::Graph {
    Net& net;
    explicit Predict(Net& n) : net(n) {
      for (size_t p = 0; p < net.parts.size(); ++p) {
        register_module("part" + std::to_string(p), net.parts[p]);
        if (net.layout.stages() > 1) set_stage(net.parts[p], net.stage(p));
      }
    }
    std::vector<Tensor> build(TensorList in) override {
      Tensor y = net.forward(in[0]);
      return {y, mean(y)};
    }
  };
  for (auto& layout : {kOne, kData, kPipeline, kBoth})
    for (auto producer : {models::mlp, models::resnet18})
      for (int n : {1, 2, 4}) {
        comm::run_ranks(layout.ranks(), [&](int) {
          manual_seed(5);
          Net net = producer(layout);
          net.place();
          for (auto& p : net.parts) p.eval();
          NoGradGuard no_grad;
          Tensor x = on(net.data(0).x, layout);
          Tensor want = net.forward(x).full();
          Predict predict(net);
          predict.config.set_gradient_accumulation_steps(n);
          auto got = predict(x);
          EXPECT_LE(max(abs(sub(want, got[0].full()))).item().as_double(), 1e-5)
              << layout.name << ", " << n << " micro-batches";
          EXPECT_EQ(got[1].numel(), n);
          EXPECT_NEAR(mean(got[1]).item().as_double(), mean(want).item().as_double(), 1e-5);
        });
      }
}

// Bytes of the arena of each rank for a number of micro-batches of the same size.
std::vector<int64_t> arenas(const char* schedule, int stages, int micro_batches) {
  std::vector<int64_t> bytes(static_cast<size_t>(stages));
  const Layout layout{.name = "pp", .pp = stages};
  comm::run_ranks(stages, [&](int rank) {
    manual_seed(5);
    Train train(models::mlp(layout));
    train.config.set_gradient_accumulation_steps(micro_batches);
    train.config.set_schedule(schedule);
    Tensor x = on(zeros({16 * micro_batches, 8}), layout),
           y = on(zeros({16 * micro_batches}, {.dtype = int64}), layout);
    train(x, y);
    bytes[static_cast<size_t>(rank)] = train.nn::Graph::step(0).stats().arena_bytes;
  });
  return bytes;
}

// 1F1B and ZB-H1 keep as many micro-batches on a rank as there are stages, and one that is handed over; GPipe keeps
// all.
TEST(InFlight, IsBoundedBySchedule) {
  for (int stages : {2, 4}) {
    for (const char* schedule : {"1f1b", "zero_bubble"}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", schedule, stages));
      auto p = arenas(schedule, stages, stages), p2 = arenas(schedule, stages, 2 * stages),
           p8 = arenas(schedule, stages, 8 * stages);
      EXPECT_EQ(p2, p8);
      for (size_t r = 0; r < p.size(); ++r) EXPECT_LE(p8[r], p[r] * 5 / 4) << "rank " << r;
    }
    auto few = arenas("gpipe", stages, stages), many = arenas("gpipe", stages, 4 * stages);
    for (size_t r = 0; r < few.size(); ++r) EXPECT_GE(many[r], few[r] * 2) << "rank " << r << " of " << stages;
    // With as many micro-batches as stages the last stage of 1F1B keeps one, that of GPipe all.
    EXPECT_LT(arenas("1f1b", stages, stages).back(), few.back());
  }
}

}  // namespace
}  // namespace holon::graph
