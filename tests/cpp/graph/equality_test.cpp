// Training by nn::Graph against the same training run eagerly: losses, parameters and buffers over 20 steps, for models
// x layouts x options.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "graph/training_models.h"
#include "holon/base/parallel.h"
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
    return fmt::format("{} micro-batches{}, ZeRO {}{}, {}", micro_batches, amp ? ", amp" : "", zero,
                       recompute ? ", recomputation" : "", schedule);
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

optim::SGD make_optimizer(const Net& net) {
  return optim::SGD(net.parameters(), {.lr = net.lr, .momentum = 0.9, .weight_decay = 1e-3});
}

Tensor on(const Tensor& local, const Layout& layout) {
  return local.to_global(layout.placement(0), layout.whole()).to_global(layout.placement(0), layout.batch());
}

// Micro-batch k of n: of the rows of each of the `groups` data-parallel groups, the k-th part.
Tensor rows_of(const Tensor& x, int k, int n, int groups) {
  const int64_t per_group = x.shape()[0] / groups, rows = per_group / n;
  std::vector<Tensor> parts;
  for (int g = 0; g < groups; ++g)
    parts.push_back(slice(x, 0, g * per_group + k * rows, g * per_group + (k + 1) * rows));
  return parts.size() == 1 ? parts[0] : cat(parts, 0);
}

Result take_down(const Net& net, std::vector<double> losses) {
  Result r{std::move(losses), {}};
  NoGradGuard no_grad;
  for (size_t p = 0; p < net.parts.size(); ++p)
    for (auto& [name, t] : net.parts[p].state_dict()) {
      Tensor whole = t.full().to(float32);
      r.state.emplace_back(fmt::format("part{}.{}", p, name),
                           std::vector<float>(whole.data<float>().begin(), whole.data<float>().end()));
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
      Tensor x = on(rows_of(b.x, k, o.micro_batches, groups), layout),
             y = on(rows_of(b.y, k, o.micro_batches, groups), layout), loss;
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

// Differences are relative to the larger of 1 and the value. The losses of the first steps, in which rounding has not
// been multiplied yet, must be ten times as near.
void expect_near(const Result& want, const Result& got, double tolerance, const char* what) {
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(want.losses[i], got.losses[i], tolerance / 10 * std::max(1.0, want.losses[i]))
        << "against " << what << ": loss " << i;
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
    set_num_threads(1);  // these tensors are smaller than what a thread is woken for
    Result r = f();
    if (rank == 0) result = std::move(r);
  });
  return result;
}

// Eager runs are shared by the options that make no difference to them.
const Result& cached(Maker maker, const Layout& layout, const Options& o, int groups) {
  using Key = std::tuple<Maker, int, int, int, int, int, bool, int>;
  static std::map<Key, Result> known;
  auto [it, fresh] =
      known.try_emplace({maker, layout.dp, layout.tp, layout.pp, layout.chunks, o.micro_batches, o.amp, groups});
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
    {1, false, 0, false, "1f1b"},       {4, false, 1, true, "1f1b"},         {2, true, 2, false, "gpipe"},
    {4, true, 3, true, "zero_bubble"},  {2, false, 3, false, "1f1b"},        {1, true, 1, true, "zero_bubble"},
    {4, false, 2, true, "zero_bubble"}, {2, true, 0, true, "1f1b"},          {1, false, 3, true, "gpipe"},
    {4, true, 1, false, "1f1b"},        {2, false, 0, false, "zero_bubble"}, {1, false, 2, false, "1f1b"},
};

// float32: sums are taken in another order, by fused kernels and by micro-batches on the same ranks, and by parts on
// others. bfloat16 has 8 bits, and which way a number of 8 bits is rounded decides about 2^-9 of it. ResNet-18 asks 1.5
// million times whether a number is above 0 and divides by deviations of a few rows: where the number is 0 but for
// rounding, a gradient of another row comes through. Eager runs on unlike ranks differ as much there.
double tolerance(const Net& net, const Options& o, bool same_ranks) {
  const bool steep = net.name == "ResNet-18";
  if (o.amp) return steep ? 0.2 : same_ranks ? 2e-2 : 5e-2;
  return steep ? 5e-3 : same_ranks ? 2e-5 : 1e-4;
}

void check(Maker maker, const Layout& layout, const Options& o) {
  SCOPED_TRACE(fmt::format("layout {}, {}", layout.name, o.str()));
  try {
    Result got = on_ranks(layout.ranks(), [&] { return compiled(maker, layout, o); });
    const Net net = maker(kOne);
    expect_near(cached(maker, layout, o, layout.dp), got, tolerance(net, o, true), "eager on the same ranks");
    if (layout.ranks() > 1)
      expect_near(cached(maker, kOne, o, layout.dp), got, tolerance(net, o, false), "eager on one rank");
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

struct Model {
  const char* name;
  Maker maker;
};
constexpr Model kModels[] = {{"MLP", models::mlp},       {"LeNet", models::lenet},       {"GPT", models::gpt},
                             {"LSTM", models::lstm_net}, {"ResNet18", models::resnet18}, {"UNet", models::unet}};

class Equality : public ::testing::TestWithParam<std::tuple<size_t, size_t>> {};

TEST_P(Equality, TrainsAsEager) {
  auto [model, layout] = GetParam();
  const size_t n = kModels[model].maker == models::resnet18 ? 2 : 3;  // it takes as long as all others
  for (size_t i = 0; i < n; ++i)
    check(kModels[model].maker, kLayouts[layout], kOptions[(model * 5 + layout * 3 + i * 4) % std::size(kOptions)]);
}

// Gradients that are summed while backward goes on, whatever the machine would do by itself.
TEST(EqualityInTheBackground, TrainsAsEager) {
  const char* set = std::getenv("HOLON_OVERLAP");
  const std::string before = set ? set : "";
  setenv("HOLON_OVERLAP", "1", 1);
  for (const Layout& layout : {Layout{.name = "dp2", .dp = 2}, Layout{.name = "dp2 x tp2", .dp = 2, .tp = 2}})
    for (const Options& o :
         {Options{1, false, 3, true, "1f1b"}, Options{2, false, 1, false, "1f1b"}, Options{2, false, 2, true, "1f1b"}})
      check(models::mlp, layout, o);
  if (set)
    setenv("HOLON_OVERLAP", before.c_str(), 1);
  else
    unsetenv("HOLON_OVERLAP");
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<size_t, size_t>>& info) {
  auto [model, layout] = info.param;
  std::string name = fmt::format("{}_{}", kModels[model].name, kLayouts[layout].name);
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)) && c != '_'; });
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Equality,
                         ::testing::Combine(::testing::Range(size_t{0}, std::size(kModels)),
                                            ::testing::Range(size_t{0}, std::size(kLayouts))),
                         name_of);

}  // namespace
}  // namespace holon::graph
