// Training by nn::Graph against the same training run eagerly: losses, parameters and buffers over 20 steps, for models
// x layouts x options.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "graph/training_models.h"
#include "holon/comm/run_ranks.h"
#include "holon/graph/nn_graph.h"

namespace holon::graph {
namespace {

using models::Batch;
using models::Layout;
using models::Net;

constexpr int kSteps = 20;

using Maker = Net (*)(const Layout&);

struct Options {
  int micro_batches = 1;
  bool amp = false;
  int zero = 0;
  bool recompute = false;
  const char* schedule = "1f1b";
  std::string str() const {
    return fmt::format("{} micro-batches{}, ZeRO {}{}, {}", micro_batches, amp ? ", amp" : "", zero, recompute ? ", recomputation" : "", schedule);
  }
};

struct Result {
  std::vector<double> losses;
  std::vector<std::pair<std::string, std::vector<float>>> state;
};

Net make(Maker maker, const Layout& layout) {
  manual_seed(5);
  Net net = maker(layout);
  net.place();
  return net;
}

optim::SGD make_optimizer(const Net& net) { return optim::SGD(net.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3}); }

Tensor on(const Tensor& local, const Layout& layout) {
  return local.to_global(layout.placement(0), layout.whole()).to_global(layout.placement(0), layout.batch());
}

// Micro-batch k of n: of the rows of each of the `groups` data-parallel groups, the k-th part.
Tensor rows_of(const Tensor& x, int k, int n, int groups) {
  const int64_t per_group = x.shape()[0] / groups, rows = per_group / n;
  std::vector<Tensor> parts;
  for (int g = 0; g < groups; ++g) parts.push_back(slice(x, 0, g * per_group + k * rows, g * per_group + (k + 1) * rows));
  return parts.size() == 1 ? parts[0] : cat(parts, 0);
}

Result take_down(const Net& net, std::vector<double> losses) {
  Result r{std::move(losses), {}};
  NoGradGuard no_grad;
  for (size_t p = 0; p < net.parts.size(); ++p)
    for (auto& [name, t] : net.parts[p].state_dict()) {
      Tensor whole = t.full().to(float32);
      r.state.emplace_back(fmt::format("part{}.{}", p, name), std::vector<float>(whole.data<float>().begin(), whole.data<float>().end()));
    }
  return r;
}

// groups: of data-parallel ranks whose rows the micro-batches are taken from, which decides what they hold.
Result eager(Maker maker, const Layout& layout, const Options& o, int groups) {
  Net net = make(maker, layout);
  auto optimizer = make_optimizer(net);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    Batch b = net.data(step);
    double sum = 0;
    for (int k = 0; k < o.micro_batches; ++k) {
      Tensor x = on(rows_of(b.x, k, o.micro_batches, groups), layout), y = on(rows_of(b.y, k, o.micro_batches, groups), layout), loss;
      {
        AutocastGuard region(bfloat16, o.amp);
        loss = net.loss(x, y);
      }
      div_scalar(loss, o.micro_batches).backward();
      sum += loss.item().as_double();
    }
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(sum / o.micro_batches);
  }
  return take_down(net, losses);
}

struct Train : nn::Graph {
  Net& net;
  Train(Net& n, optim::Optimizer& optimizer, const Options& o) : net(n) {
    for (size_t p = 0; p < net.parts.size(); ++p) {
      register_module("part" + std::to_string(p), net.parts[p]);
      if (net.layout.stages() > 1) set_stage(net.parts[p], net.stage(p));
      if (o.recompute) set_activation_checkpointing(net.parts[p]);
    }
    add_optimizer(optimizer);
    config.set_gradient_accumulation_steps(o.micro_batches);
    config.enable_amp(o.amp);
    config.enable_zero(o.zero > 0, o.zero);
    config.set_schedule(o.schedule);
    config.verify();
  }
  TensorVec build(std::span<const Tensor> in) override {
    Tensor loss = net.loss(in[0], in[1]);
    loss.backward();
    return {loss};
  }
};

Result compiled(Maker maker, const Layout& layout, const Options& o) {
  Net net = make(maker, layout);
  auto optimizer = make_optimizer(net);
  Train train(net, optimizer, o);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    Batch b = net.data(step);
    losses.push_back(mean(train(on(b.x, layout), on(b.y, layout))[0]).item().as_double());
  }
  return take_down(net, losses);
}

// The largest difference relative to the larger of 1 and the value; what: of losses, then of state.
void expect_near(const Result& want, const Result& got, double tolerance, const char* what) {
  double worst = 0;
  std::string where;
  auto compare = [&](double a, double b, const std::string& name) {
    double d = std::abs(a - b) / std::max(1.0, std::abs(a));
    if (!(d <= worst)) worst = d, where = fmt::format("{}: {} and {}", name, a, b);
  };
  ASSERT_EQ(want.losses.size(), got.losses.size());
  ASSERT_EQ(want.state.size(), got.state.size());
  for (size_t i = 0; i < want.losses.size(); ++i) compare(want.losses[i], got.losses[i], fmt::format("loss {}", i));
  for (size_t s = 0; s < want.state.size(); ++s) {
    auto &a = want.state[s], &b = got.state[s];
    ASSERT_EQ(a.second.size(), b.second.size()) << a.first;
    for (size_t i = 0; i < a.second.size(); ++i) compare(a.second[i], b.second[i], fmt::format("{}[{}]", a.first, i));
  }
  EXPECT_LE(worst, tolerance) << "against " << what << ": " << where;
}

Result on_ranks(int n, const std::function<Result()>& f) {
  Result result;
  comm::run_ranks(n, [&](int rank) {
    Result r = f();
    if (rank == 0) result = std::move(r);
  });
  return result;
}

// Eager runs are shared by the options that make no difference to them.
const Result& cached(Maker maker, const Layout& layout, const Options& o, int groups) {
  using Key = std::tuple<Maker, int, int, int, int, int, bool, int>;
  static std::map<Key, Result> known;
  auto [it, fresh] = known.try_emplace({maker, layout.dp, layout.tp, layout.pp, layout.chunks, o.micro_batches, o.amp, groups});
  if (fresh) it->second = on_ranks(layout.ranks(), [&] { return eager(maker, layout, o, groups); });
  return it->second;
}

constexpr Layout kOne{"1"};
constexpr Layout kLayouts[] = {
    kOne,
    {.name = "dp2", .dp = 2},
    {.name = "tp2", .tp = 2},
    {.name = "pp2", .pp = 2},
    {.name = "dp2 x tp2", .dp = 2, .tp = 2},
    {.name = "dp2 x pp2", .dp = 2, .pp = 2},
    {.name = "tp2 x pp2", .tp = 2, .pp = 2},
    {.name = "dp2 x tp2 x pp2", .dp = 2, .tp = 2, .pp = 2},
    {.name = "pp2, interleaved", .pp = 2, .chunks = 2},
    {.name = "pp4", .pp = 4},
};

// Each pair of settings of two options is somewhere.
constexpr Options kOptions[] = {
    {1, false, 0, false, "1f1b"},       {4, false, 1, true, "1f1b"},       {2, true, 2, false, "gpipe"},
    {4, true, 3, true, "zero_bubble"},  {2, false, 3, false, "1f1b"},      {1, true, 1, true, "zero_bubble"},
    {4, false, 2, true, "zero_bubble"}, {2, true, 0, true, "1f1b"},        {1, false, 3, true, "gpipe"},
    {4, true, 1, false, "1f1b"},        {2, false, 0, false, "zero_bubble"}, {1, false, 2, false, "1f1b"},
};

void check(Maker maker, const Layout& layout, const Options& o) {
  SCOPED_TRACE(fmt::format("layout {}, {}", layout.name, o.str()));
  Result got = on_ranks(layout.ranks(), [&] { return compiled(maker, layout, o); });
  expect_near(cached(maker, layout, o, layout.dp), got, o.amp ? 2e-2 : 2e-5, "eager on the same ranks");
  if (layout.ranks() > 1) expect_near(cached(maker, kOne, o, layout.dp), got, o.amp ? 2e-2 : 1e-4, "eager on one rank");
}

class Equality : public ::testing::TestWithParam<std::pair<const char*, Maker>> {};

TEST_P(Equality, TrainsAsEager) {
  size_t next = 0;
  for (auto& layout : kLayouts)
    for (int i = 0; i < 4; ++i) check(GetParam().second, layout, kOptions[next++ % std::size(kOptions)]);
}

INSTANTIATE_TEST_SUITE_P(Models, Equality,
                         ::testing::Values(std::pair{"MLP", Maker(models::mlp)}, std::pair{"LeNet", Maker(models::lenet)},
                                           std::pair{"GPT", Maker(models::gpt)}, std::pair{"LSTM", Maker(models::lstm_net)},
                                           std::pair{"ResNet18", Maker(models::resnet18)}, std::pair{"UNet", Maker(models::unet)}),
                         [](auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace holon::graph
