// Gradients clipped inside of graphs: as eagerly, on every layout, with micro-batches, ZeRO and loss scales.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/training_models.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/nn_graph.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/shape.h"

namespace holon::graph {
namespace {

using models::Layout;
using models::Net;

constexpr double kLimit = 0.05;

enum class How {
  kGroups,     // the groups' clip_grad_max_norm
  kBuild,      // clip_grad_norm_() on all parameters in build()
  kOptimizer,  // clip_grad() of the optimizer in build(), whose groups would be clipped anyway
  kValue,
};

const char* name(How how) {
  const char* names[] = {"by groups", "in build()", "by the optimizer in build()", "by value"};
  return names[static_cast<int>(how)];
}

struct Model {
  Net net;
  optim::AdamW optimizer;
  Model(const Layout& layout, How how, double norm_type)
      : net(made(layout)), optimizer(some(2), options(how, norm_type, 0.1)) {
    optimizer.add_group(some(1), options(how, norm_type, 0));
  }
  static Net made(const Layout& layout) {
    manual_seed(5);
    Net net = models::unet(layout);
    net.place();
    return net;
  }
  std::vector<Tensor> some(int ndim) const {
    std::vector<Tensor> found;
    for (auto& p : net.parameters())
      if (p.ndim() == ndim) found.push_back(p);
    return found;
  }
  static optim::AdamWOptions options(How how, double norm_type, double decay) {
    optim::AdamWOptions o{.lr = 0.01, .eps = 1e-4, .weight_decay = decay};
    if (how == How::kGroups || how == How::kOptimizer)
      o.group = {.clip_grad_max_norm = kLimit, .clip_grad_norm_type = norm_type};
    return o;
  }
  std::pair<Tensor, Tensor> batch(int i, int64_t first, int64_t rows) const {
    auto [x, y] = net.data(i);
    auto on = [&](const Tensor& t) {
      Placement p = net.layout.placement(0);
      return slice(t, 0, first, first + rows).to_global(p, net.layout.whole()).to_global(p, net.layout.batch());
    };
    return {on(x), on(y)};
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
  // Returns the norm, if there is one.
  Tensor clip(How how, double norm_type) {
    if (how == How::kBuild) return optim::clip_grad_norm_(net.parameters(), kLimit, norm_type);
    if (how == How::kValue) optim::clip_grad_value(net.parameters(), 0.01);
    if (how == How::kValue) return {};
    return optimizer.clip_grad()[0];
  }
};

struct Train : nn::Graph {
  Model& m;
  How how;
  double norm_type;
  Train(Model& model, How how, double norm_type, int micro_batches, int zero, optim::GradScaler* scaler)
      : m(model), how(how), norm_type(norm_type) {
    for (size_t p = 0; p < m.net.parts.size(); ++p) {
      register_module("part" + std::to_string(p), m.net.parts[p]);
      if (m.net.layout.stages() > 1) set_stage(m.net.parts[p], m.net.stage(p));
    }
    add_optimizer(m.optimizer);
    if (scaler) set_grad_scaler(*scaler);
    config.set_gradient_accumulation_steps(micro_batches, true);
    config.enable_zero(zero > 0, zero);
    config.disable_passes({"fuse_epilogue"});  // a product that is rounded in other places
    config.verify();
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor loss = m.net.loss(in[0], in[1]);
    loss.backward();
    Tensor norm = how == How::kGroups ? Tensor() : m.clip(how, norm_type);
    if (!norm.defined()) return {loss};
    return {loss, norm, mul(norm, 2)};
  }
};

struct Found {
  std::vector<float> weights;
  std::vector<double> norms;
};

constexpr int kSteps = 4;

Found eagerly(const Layout& layout, How how, double norm_type, int micro_batches) {
  Model m(layout, how, norm_type);
  Found found;
  for (int i = 0; i < kSteps; ++i) {
    m.optimizer.zero_grad();
    for (int k = 0; k < micro_batches; ++k) {
      auto [x, y] = m.batch(i, k * models::kRows / micro_batches, models::kRows / micro_batches);
      Tensor loss = m.net.loss(x, y);
      (micro_batches > 1 ? div(loss, micro_batches) : loss).backward();
    }
    if (Tensor norm = m.clip(how, norm_type); norm.defined()) found.norms.push_back(norm.item().as_double());
    m.optimizer.step();
  }
  found.weights = m.weights();
  return found;
}

Found compiled(const Layout& layout, How how, double norm_type, int micro_batches, int zero, bool scaled) {
  Model m(layout, how, norm_type);
  optim::GradScaler scaler{.scale = 1024, .growth_interval = 2};
  Train train(m, how, norm_type, micro_batches, zero, scaled ? &scaler : nullptr);
  Found found;
  for (int i = 0; i < kSteps; ++i) {
    auto [x, y] = m.batch(i, 0, models::kRows);
    auto out = train(x, y);
    EXPECT_EQ(train.grad_norms().size(), how == How::kValue ? 0u : 1u);
    for (double norm : train.grad_norms()) found.norms.push_back(static_cast<float>(norm));
    if (out.size() < 2) continue;
    EXPECT_EQ(out[1].ndim(), 0);
    EXPECT_EQ(out[1].item().as_double(), found.norms.back());
    EXPECT_EQ(out[2].item().as_double(), 2 * found.norms.back());
  }
  found.weights = m.weights();
  return found;
}

void compare(const Found& want, const Found& got, double tolerance) {
  ASSERT_EQ(want.norms.size(), got.norms.size());
  for (size_t i = 0; i < want.norms.size(); ++i) EXPECT_NEAR(got.norms[i] / want.norms[i], 1, tolerance) << i;
  ASSERT_EQ(want.weights.size(), got.weights.size());
  for (size_t i = 0; i < want.weights.size(); ++i) EXPECT_NEAR(want.weights[i], got.weights[i], tolerance) << i;
}

TEST(Clip, IsEagerOnEveryLayout) {
  for (auto& layout : {Layout{"1"}, Layout{.name = "dp2", .dp = 2}, Layout{.name = "tp2", .tp = 2},
                       Layout{.name = "dp2 x pp2", .dp = 2, .pp = 2}})
    comm::run_ranks(layout.ranks(), [&](int) {
      for (How how : {How::kGroups, How::kBuild, How::kOptimizer, How::kValue})
        for (int micro_batches : {1, 2}) {
          const Found want = eagerly(layout, how, 2, micro_batches);
          for (double norm : want.norms) EXPECT_GT(norm, 2 * kLimit) << "nothing is clipped";
          for (int zero : {0, 1, 2, 3})
            for (bool scaled : {false, true}) {
              SCOPED_TRACE(fmt::format("{}, {}, {} micro-batches, ZeRO {}{}", layout.name, name(how), micro_batches,
                                       zero, scaled ? ", scaled" : ""));
              // Sums over micro-batches are taken in another order than eager ones.
              compare(want, compiled(layout, how, 2, micro_batches, zero, scaled), micro_batches == 1 ? 0 : 2e-6);
            }
        }
    });
}

TEST(Clip, AnyNorm) {
  const Layout layout{.name = "dp2", .dp = 2};
  comm::run_ranks(layout.ranks(), [&](int) {
    for (double p : {1.0, 2.5, 0.0, HUGE_VAL, -HUGE_VAL}) {
      SCOPED_TRACE(p);
      const Found want = eagerly(layout, How::kBuild, p, 1);
      for (int zero : {0, 2}) compare(want, compiled(layout, How::kBuild, p, 1, zero, false), p == 2.5 ? 1e-6 : 0);
    }
  });
}

}  // namespace
}  // namespace holon::graph
