// A compiled step against the same program run eagerly.
#include <gtest/gtest.h>

#include "holon/comm/run_ranks.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/step.h"
#include "holon/holon.h"
#include "holon/optim/optimizer.h"

namespace holon::graph {
namespace {

struct Mlp {
  Tensor w1, b1, w2, b2;
  static Mlp make(const GlobalSpec* spec) {
    manual_seed(7);
    RandnOptions o;
    if (spec) o.placement = spec->placement, o.sbp = spec->nd_sbp;
    Mlp m{randn({6, 16}, o), randn({16}, o), randn({16, 3}, o), randn({3}, o)};
    for (auto& t : m.parameters()) Tensor(t).set_requires_grad();
    return m;
  }
  std::vector<Tensor> parameters() const { return {w1, b1, w2, b2}; }
  Tensor loss(const Tensor& x, const Tensor& y) const {
    Tensor h = relu(add(matmul(x, w1), b1));
    h = dropout(h, 0.25);
    return mse_loss(add(matmul(h, w2), b2), y);
  }
};

Tensor data(const Dims& shape, int seed, const GlobalSpec* spec) {
  RandnOptions o;
  o.seed = seed;
  if (spec) o.placement = spec->placement, o.sbp = spec->nd_sbp;
  return randn(shape, o);
}

std::vector<double> eager(const GlobalSpec* weights, const GlobalSpec* batch, int steps, Mlp* out) {
  Mlp m = Mlp::make(weights);
  optim::AdamW optimizer(m.parameters(), {.lr = 0.01, .weight_decay = 0.01});
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    Tensor loss = m.loss(data({8, 6}, 2 * i, batch), data({8, 3}, 2 * i + 1, batch));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item().as_double());
  }
  *out = m;
  return losses;
}

std::vector<double> compiled(const GlobalSpec* weights, const GlobalSpec* batch, int steps, Mlp* out) {
  Mlp m = Mlp::make(weights);
  std::unique_ptr<Step> step;
  {
    Capture capture;
    Tensor x = capture.input({8, 6}, float32, batch, {}), y = capture.input({8, 3}, float32, batch, {});
    Tensor loss = m.loss(x, y);
    loss.backward();
    capture.add_update(optim::rule_of(optim::AdamOptions{.lr = 0.01, .weight_decay = 0.01, .decoupled = true}),
                       m.parameters());
    step = std::make_unique<Step>(capture.finish({&loss, 1}), StepOptions{});
  }
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    std::vector<Tensor> in{data({8, 6}, 2 * i, batch), data({8, 3}, 2 * i + 1, batch)};
    losses.push_back(step->run(in)[0].item().as_double());
  }
  *out = m;
  return losses;
}

void expect_equal(const GlobalSpec* weights, const GlobalSpec* batch) {
  Mlp a, b;
  auto want = eager(weights, batch, 5, &a), got = compiled(weights, batch, 5, &b);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(want[i], got[i], 1e-6 * std::abs(want[i])) << "step " << i;
  for (size_t p = 0; p < 4; ++p) {
    Tensor difference = sub(a.parameters()[p].full(), b.parameters()[p].full());
    EXPECT_LE(max(abs(difference)).item().as_double(), 1e-6) << "parameter " << p;
  }
}

TEST(Step, TrainsAsEagerOnOneRank) { expect_equal(nullptr, nullptr); }

TEST(Step, TrainsAsEagerOnTwoRanks) {
  comm::run_ranks(2, [](int) {
    Placement p("cpu", {0, 1});
    auto* broadcast = intern_spec(p, sbp::broadcast());
    expect_equal(broadcast, intern_spec(p, sbp::split(0)));
    expect_equal(broadcast, broadcast);
  });
}

TEST(Step, OutputsOutliveTheNextStep) {
  Tensor w = ones({4});
  std::unique_ptr<Step> step;
  {
    Capture capture;
    Tensor x = capture.input({4}, float32, nullptr, {});
    Tensor y = mul(add(x, w), w);
    std::vector<Tensor> out{y, reshape(y, {2, 2}), x, w};
    step = std::make_unique<Step>(capture.finish(out), StepOptions{});
  }
  std::vector<Tensor> in{full({4}, 2.0)};
  auto first = step->run(in);
  in[0] = full({4}, 5.0);
  auto second = step->run(in);
  EXPECT_EQ(first[0].data<float>()[0], 3);
  EXPECT_EQ(first[1].data<float>()[3], 3);
  EXPECT_EQ(first[2].data<float>()[1], 2);
  EXPECT_EQ(second[0].data<float>()[0], 6);
  EXPECT_EQ(second[3].data<float>()[0], 1);
}

}  // namespace
}  // namespace holon::graph
