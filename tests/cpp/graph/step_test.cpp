// A compiled step against the same program run eagerly.
#include <memory>

#include <gtest/gtest.h>

#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/loss.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "holon/optim/optimizer.h"
#include "holon/tensor.h"

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

// The rows that each rank has in micro-batch k of n.
Tensor micro_batch(const Tensor& x, int k, int n) {
  if (n == 1) return x;
  Tensor part = x.is_global() ? x.to_local() : x;
  const int64_t rows = part.shape()[0] / n;
  Tensor mine = slice(part, 0, k * rows, (k + 1) * rows);
  return x.is_global() ? mine.to_global(x.placement(), x.nd_sbp()) : mine;
}

struct Setup {
  const GlobalSpec *weights = nullptr, *batch = nullptr;
  int micro_batches = 1;
  CompileOptions options;
};

std::vector<double> eager(const Setup& s, int steps, Mlp* out) {
  Mlp m = Mlp::make(s.weights);
  optim::AdamW optimizer(m.parameters(), {.lr = 0.01, .weight_decay = 0.01});
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    Tensor x = data({8, 6}, 2 * i, s.batch), y = data({8, 3}, 2 * i + 1, s.batch);
    double sum = 0;
    for (int k = 0; k < s.micro_batches; ++k) {
      Tensor loss = m.loss(micro_batch(x, k, s.micro_batches), micro_batch(y, k, s.micro_batches));
      div(loss, s.micro_batches).backward();
      sum += loss.item().as_double();
    }
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(sum / s.micro_batches);
  }
  *out = m;
  return losses;
}

std::vector<double> compiled(const Setup& s, int steps, Mlp* out) {
  Mlp m = Mlp::make(s.weights);
  std::unique_ptr<Step> step;
  {
    Capture capture;
    capture.set_micro_batches(s.micro_batches);
    Tensor x = capture.input_like(data({8, 6}, 0, s.batch)), y = capture.input_like(data({8, 3}, 0, s.batch));
    capture.push_scope("model");
    Tensor loss = m.loss(x, y);
    capture.pop_scope();
    loss.backward();
    capture.add_update(optim::rule_of(optim::AdamOptions{.lr = 0.01, .weight_decay = 0.01, .decoupled = true}),
                       m.parameters());
    step = std::make_unique<Step>(capture.finish({&loss, 1}), s.options);
  }
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    std::vector<Tensor> in{data({8, 6}, 2 * i, s.batch), data({8, 3}, 2 * i + 1, s.batch)};
    losses.push_back(mean(step->run(in)[0]).item().as_double());
  }
  *out = m;
  return losses;
}

void expect_equal(Setup s) {
  s.options.verify = true;
  Mlp a, b;
  auto want = eager(s, 5, &a), got = compiled(s, 5, &b);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(want[i], got[i], 2e-6 * std::abs(want[i])) << "step " << i;
  for (size_t p = 0; p < 4; ++p) {
    Tensor difference = sub(a.parameters()[p].full(), b.parameters()[p].full());
    EXPECT_LE(max(abs(difference)).item().as_double(), 2e-6) << "parameter " << p;
  }
}

std::vector<Setup> variants(const GlobalSpec* weights, const GlobalSpec* batch) {
  std::vector<Setup> all;
  for (int micro_batches : {1, 2, 4})
    for (int zero : {0, 1, 2, 3})
      for (bool again : {false, true})
        for (int64_t bucket : {int64_t{1} << 20, int64_t{0}}) {
          Setup s{weights, batch, micro_batches, {}};
          s.options.zero_stage = zero;
          s.options.bucket_bytes = bucket;
          if (again) s.options.recompute = {"model"};
          all.push_back(s);
        }
  return all;
}

std::string text(const Setup& s) {
  return fmt::format("{} micro-batches, ZeRO {}, recompute {}, buckets of {}", s.micro_batches, s.options.zero_stage,
                     s.options.recompute.size(), s.options.bucket_bytes);
}

TEST(Step, TrainsAsEagerOnOneRank) {
  for (auto& s : variants(nullptr, nullptr)) {
    SCOPED_TRACE(text(s));
    expect_equal(s);
  }
}

TEST(Step, TrainsAsEagerOnTwoRanks) {
  comm::run_ranks(2, [](int) {
    Placement p("cpu", {0, 1});
    auto* broadcast = intern_spec(p, sbp::broadcast());
    for (auto& s : variants(broadcast, intern_spec(p, sbp::split(0)))) {
      if (8 % (2 * s.micro_batches)) continue;
      SCOPED_TRACE(text(s));
      expect_equal(s);
    }
    expect_equal({broadcast, broadcast});
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
    step = std::make_unique<Step>(capture.finish(out), CompileOptions{});
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
