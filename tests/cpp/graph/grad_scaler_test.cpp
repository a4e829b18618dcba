// Losses multiplied by a scale: steps are those without one, and a step with gradients that are not finite is left out.
#include <gtest/gtest.h>

#include <limits>

#include "graph/training_models.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/nn_graph.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"

namespace holon::graph {
namespace {

using models::Layout;
using models::Net;

struct Train : nn::Graph {
  Net net;
  optim::AdamW optimizer;
  explicit Train(Net n, optim::GradScaler* scaler)
      : net(placed(std::move(n))), optimizer(net.parameters(), {.lr = 0.01, .eps = 1e-4, .weight_decay = 0.01}) {
    for (size_t p = 0; p < net.parts.size(); ++p) {
      register_module("part" + std::to_string(p), net.parts[p]);
      if (net.layout.stages() > 1) set_stage(net.parts[p], net.stage(p));
    }
    add_optimizer(optimizer);
    if (scaler) set_grad_scaler(*scaler);
    config.set_gradient_accumulation_steps(2, true);
    config.verify();
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor loss = net.loss(in[0], in[1]);
    loss.backward();
    return {loss};
  }
  double step(int i, int64_t rows, bool bad = false) {
    auto [x, y] = net.data(i);
    if (bad) x.data<float>()[0] = std::numeric_limits<float>::infinity();
    auto on = [&](const Tensor& t) {
      Placement p = net.layout.placement(0);
      return slice(t, 0, 0, rows).to_global(p, net.layout.whole()).to_global(p, net.layout.batch());
    };
    return mean((*this)(on(x), on(y))[0]).item().as_double();
  }
  std::vector<float> weights() const {
    NoGradGuard no_grad;
    std::vector<float> all;
    for (auto& p : net.parameters()) {
      const Tensor whole = p.full();  // data() does not hold it
      for (float v : whole.data<float>()) all.push_back(v);
    }
    return all;
  }

 private:
  static Net placed(Net n) {
    n.place();
    return n;
  }
};

Net plain(const Layout& layout) {
  manual_seed(5);
  return models::unet(layout);
}

TEST(GradScaler, StepsAreThoseWithoutAScale) {
  for (auto& layout : {Layout{"1"}, Layout{.name = "dp2", .dp = 2}, Layout{.name = "dp2 x pp2", .dp = 2, .pp = 2}})
    for (int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, ZeRO {}", layout.name, zero));
      comm::run_ranks(layout.ranks(), [&](int) {
        optim::GradScaler scaler{.scale = 1024, .growth_interval = 2};
        std::vector<float> want, got;
        for (optim::GradScaler* s : {static_cast<optim::GradScaler*>(nullptr), &scaler}) {
          Train train(plain(layout), s);
          train.config.enable_zero(zero > 0, zero);
          std::vector<int64_t> rows{8, 7, 8, 5};
          for (size_t i = 0; i < rows.size(); ++i) train.step(static_cast<int>(i), rows[i]);
          (s ? got : want) = train.weights();
          EXPECT_EQ(train.n_signatures(), 3u) << "another scale is no other signature";
        }
        ASSERT_EQ(want.size(), got.size());
        for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(want[i], got[i], 1e-6);
        EXPECT_EQ(scaler.scale, 4096);
      });
    }
}

TEST(GradScaler, AStepThatIsNotFiniteIsLeftOutOnAllRanks) {
  const Layout layout{.name = "dp2 x pp2", .dp = 2, .pp = 2};
  comm::run_ranks(layout.ranks(), [&](int) {
    optim::GradScaler scaler{.scale = 1024};
    Train train(plain(layout), &scaler);
    train.step(0, 8);
    const std::vector<float> before = train.weights();
    train.step(1, 8, true);
    EXPECT_EQ(train.weights(), before);
    EXPECT_EQ(scaler.scale, 512);
    train.step(2, 8);
    EXPECT_NE(train.weights(), before);
    EXPECT_EQ(scaler.good_steps, 1);
    const optim::StateDict state = train.optimizer.state_dict();
    for (auto& [name, t] : state.tensors) {
      const Tensor whole = t.full().to(float32);
      for (float v : whole.data<float>()) EXPECT_TRUE(std::isfinite(v)) << name;
    }
  });
}

}  // namespace
}  // namespace holon::graph
