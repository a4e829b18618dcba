// Batches that the micro-batches do not divide: how rows are divided, and training by nn::Graph against the same
// training run eagerly, micro-batch by micro-batch and the batch at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "graph/training_models.h"
#include "holon/base/fmt.h"
#include "holon/base/parallel.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/autocast.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/capture/micro_batches.h"
#include "holon/graph/nn_graph.h"
#include "holon/graph/picture/memory_use.h"
#include "holon/graph/picture/plan.h"
#include "holon/graph/picture/timetable.h"
#include "holon/graph/program/program.h"
#include "holon/graph/step.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/create.h"
#include "holon/ops/linalg.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::graph {
namespace {

using models::Batch;
using models::Layout;
using models::Net;
using Factory = Net (*)(const Layout&);

constexpr Layout kOne{"1"}, kData{.name = "dp2", .dp = 2}, kTensor{.name = "tp2", .tp = 2},
    kPipeline{.name = "pp2", .pp = 2}, kInterleaved{.name = "pp2, interleaved", .pp = 2, .chunks = 2},
    kBoth{.name = "dp2 x pp2", .dp = 2, .pp = 2}, kLong{.name = "pp4", .pp = 4};

struct Options {
  int micro_batches = 3;
  bool amp = false;
  int zero = 0;
  bool recompute = false;
  const char* schedule = "1f1b";
};

// Rows of each data-parallel rank that each micro-batch takes, as the header of divide_rows says it.
std::vector<std::vector<int64_t>> rows_of_ranks(int64_t rows, int ranks, int n) {
  const int64_t each = rows / ranks;
  const int64_t count = std::max<int64_t>(1, std::min<int64_t>(n, each));
  std::vector<std::vector<int64_t>> all;
  for (int64_t m = 0; m < count; ++m) {
    all.emplace_back();
    for (int r = 0; r < ranks; ++r)
      all.back().push_back(each / count + (m < each % count) + (m == count - 1 && r < rows % ranks));
  }
  return all;
}

Tensor on(const Tensor& local, const Layout& layout) {
  return local.to_global(layout.placement(0), layout.whole()).to_global(layout.placement(0), layout.batch());
}

Batch batch(const Net& net, int step, int64_t rows) {
  Batch b = net.data(step);
  return {slice(b.x, 0, 0, rows), slice(b.y, 0, 0, rows)};
}

Net make(Factory producer, const Layout& layout, bool training) {
  manual_seed(5);
  Net net = producer(layout);
  net.place();
  for (auto& p : net.parts) p.train(training);
  return net;
}

optim::AdamW make_optimizer(const Net& net) {
  return optim::AdamW(net.parameters(), {.lr = net.lr / 10, .eps = 1e-3, .weight_decay = 1e-2});
}

struct Result {
  std::vector<double> losses;
  std::vector<std::pair<std::string, std::vector<float>>> state;
};

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

// Micro-batch by micro-batch, each weighed by its rows.
Result eager(Factory producer, const Layout& layout, const Options& o, const std::vector<int64_t>& rows,
             bool training) {
  Net net = make(producer, layout, training);
  auto optimizer = make_optimizer(net);
  std::vector<double> losses;
  for (size_t step = 0; step < rows.size(); ++step) {
    Batch b = batch(net, static_cast<int>(step), rows[step]);
    std::vector<int64_t> at;  // of each rank: where the next micro-batch begins
    for (int r = 0; r < layout.dp; ++r)
      at.push_back(r * (rows[step] / layout.dp) + std::min<int64_t>(r, rows[step] % layout.dp));
    double sum = 0;
    for (auto& of_ranks : rows_of_ranks(rows[step], layout.dp, o.micro_batches)) {
      std::vector<Tensor> x, y;
      for (size_t r = 0; r < at.size(); ++r) {
        x.push_back(slice(b.x, 0, at[r], at[r] + of_ranks[r]));
        y.push_back(slice(b.y, 0, at[r], at[r] + of_ranks[r]));
        at[r] += of_ranks[r];
      }
      const double share = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0) / static_cast<double>(rows[step]);
      Tensor loss;
      {
        AutocastGuard region(bfloat16, o.amp);
        loss = net.loss(on(cat(x, 0), layout), on(cat(y, 0), layout));
      }
      mul(loss, share).backward();
      sum += loss.item().as_double() * share;
    }
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(sum);
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
    config.set_gradient_accumulation_steps(o.micro_batches, true);
    config.enable_amp(o.amp);
    config.enable_zero(o.zero > 0, o.zero);
    config.set_schedule(o.schedule);
    config.verify();
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor loss = net.loss(in[0], in[1]);
    loss.backward();
    return {loss};
  }
};

Result compiled(Factory producer, const Layout& layout, const Options& o, const std::vector<int64_t>& rows,
                bool training, size_t* signatures = nullptr) {
  Net net = make(producer, layout, training);
  auto optimizer = make_optimizer(net);
  Train train(net, optimizer, o);
  std::vector<double> losses;
  for (size_t step = 0; step < rows.size(); ++step) {
    Batch b = batch(net, static_cast<int>(step), rows[step]);
    losses.push_back(mean(train(on(b.x, layout), on(b.y, layout))[0]).item().as_double());
  }
  if (signatures) *signatures = train.n_signatures();
  return take_down(net, losses);
}

void expect_near(const Result& want, const Result& got, double tolerance) {
  double worst = 0;
  std::string where;
  auto compare = [&](double a, double b, const std::string& name) {
    double d = std::abs(a - b) / std::max(1.0, std::abs(a));
    if (!(d <= worst)) worst = d, where = fmt::format("{}: {} and {}", name, a, b);
  };
  ASSERT_EQ(want.losses.size(), got.losses.size());
  ASSERT_EQ(want.state.size(), got.state.size());
  for (size_t i = 0; i < want.losses.size(); ++i) compare(want.losses[i], got.losses[i], fmt::format("loss {}", i));
  for (size_t s = 0; s < want.state.size(); ++s)
    for (size_t i = 0; i < want.state[s].second.size(); ++i)
      compare(want.state[s].second[i], got.state[s].second[i], fmt::format("{}[{}]", want.state[s].first, i));
  EXPECT_LE(worst, tolerance) << where;
}

Result on_ranks(int n, const std::function<Result()>& f) {
  Result result;
  comm::run_ranks(n, [&](int rank) {
    set_num_threads(1);
    Result r = f();
    if (rank == 0) result = std::move(r);
  });
  return result;
}

void check(Factory producer, const Layout& layout, const Options& o, const std::vector<int64_t>& rows, double tolerance,
           bool training = true) {
  SCOPED_TRACE(fmt::format("{}, {} micro-batches{}, ZeRO {}{}, {}", layout.name, o.micro_batches, o.amp ? ", amp" : "",
                           o.zero, o.recompute ? ", recomputation" : "", o.schedule));
  try {
    Result want = on_ranks(layout.ranks(), [&] { return eager(producer, layout, o, rows, training); });
    Result got = on_ranks(layout.ranks(), [&] { return compiled(producer, layout, o, rows, training); });
    expect_near(want, got, tolerance);
  } catch (const std::exception& e) {
    ADD_FAILURE() << e.what();
  }
}

constexpr const char* kSchedules[] = {"gpipe", "1f1b", "interleaved", "zero_bubble"};

TEST(DivideRows, IsBalancedAndNeverEmpty) {
  for (int64_t rows = 1; rows <= 30; ++rows)
    for (int n = 1; n <= 9; ++n) {
      const Tensor x = zeros({rows, 2}), y = zeros({2 * rows}), z = zeros({});
      const Tensor in[] = {x, y, z};
      const MicroBatches all = divide_rows(in, n, true);
      EXPECT_EQ(all.count, std::min<int64_t>(n, rows));
      int64_t sum = 0, least = rows, most = 0;
      double shares = 0;
      for (int m = 0; m < all.count; ++m) {
        const auto f = static_cast<size_t>(all.variant_of.empty() ? 0 : all.variant_of[static_cast<size_t>(m)]);
        const int64_t own = all.rows[f][0];
        EXPECT_EQ(all.rows[f][1], 2 * own);
        EXPECT_EQ(all.rows[f][2], 0);
        sum += own;
        shares += all.shares[f];
        EXPECT_TRUE(m == 0 || own <= least) << "the first have one more";
        least = std::min(least, own), most = std::max(most, own);
      }
      EXPECT_EQ(sum, rows);
      EXPECT_NEAR(shares, 1, 1e-12);
      EXPECT_GE(least, 1);
      EXPECT_LE(most - least, 1);
      EXPECT_EQ(all.variant_of.empty(), most == least);
    }
}

TEST(DivideRows, EachRanksRowsAreThoseThatItHas) {
  for (Dims hierarchy : {Dims{3}, Dims{2, 2}, Dims{2, 3}})
    comm::run_ranks(static_cast<int>(hierarchy.numel()), [&](int rank) {
      std::vector<int64_t> ranks(static_cast<size_t>(hierarchy.numel()));
      std::iota(ranks.begin(), ranks.end(), 0);
      const Placement p("cpu", hierarchy, ranks);
      const NdSbp split = NdSbp::filled(hierarchy.size(), sbp::split(0));
      for (int64_t rows = 1; rows <= 20; ++rows)
        for (int n = 2; n <= 5; ++n) {
          const Tensor x = zeros({rows, 2}, {.placement = p, .sbp = split});
          const MicroBatches all = divide_rows({&x, 1}, n, true);
          int64_t own = 0;
          for (int m = 0; m < all.count; ++m) {
            const auto f = static_cast<size_t>(all.variant_of.empty() ? 0 : all.variant_of[static_cast<size_t>(m)]);
            own += region_of({all.rows[f][0], 2}, p, split, rank).shape[0];
          }
          EXPECT_EQ(own, x.array().shape[0]) << rows << " rows, " << n << " micro-batches";
        }
    });
}

// Nothing is drawn and no statistics are taken: the batch at once is the truth.
TEST(Uneven, IsTheWholeBatch) {
  const std::vector<int64_t> rows{8, 7, 8, 5, 3, 8, 2, 1, 8};
  Options whole{.micro_batches = 1};
  for (auto producer : {models::unet, models::gpt}) {
    const Result want = on_ranks(1, [&] { return eager(producer, kOne, whole, rows, false); });
    for (auto& layout : {kOne, kData, kTensor, kPipeline, kInterleaved, kBoth, kLong})
      for (int n : {2, 3, 4, 5}) {
        SCOPED_TRACE(fmt::format("{}, {} micro-batches", layout.name, n));
        size_t signatures = 0;
        const Options o{.micro_batches = n};
        try {
          expect_near(want,
                      on_ranks(layout.ranks(),
                               [&] {
                                 size_t found = 0;
                                 Result r = compiled(producer, layout, o, rows, false, &found);
                                 if (layout.ranks() == 1) signatures = found;
                                 return r;
                               }),
                      1e-4);
        } catch (const std::exception& e) {
          ADD_FAILURE() << e.what();
        }
        if (layout.ranks() == 1) {
          EXPECT_EQ(signatures, 6u) << "each number of rows is compiled once";
        }
      }
  }
}

TEST(Uneven, DrawsAndStatisticsGoFromMicroBatchToMicroBatch) {
  const std::vector<int64_t> rows{8, 7, 8, 7, 5, 8};
  for (auto& layout : {kOne, kData, kPipeline, kBoth}) {
    check(models::mlp, layout, {}, rows, 2e-5);
    check(models::gpt, layout, {}, rows, 2e-5);
    check(models::lstm_net, layout, {}, rows, 2e-5);
  }
  // Statistics of one row of one pixel are none: batches that leave two to each.
  for (auto& layout : {kOne, kData, kPipeline, kBoth})
    check(models::resnet18, layout, {.micro_batches = 2}, {8, 7, 5, 6}, 5e-3);
}

// The share of a batch in the running statistics is another one in each step.
Net counting(const Layout& layout) {
  Net net{.name = "counting", .layout = layout};
  for (int i = 0; i < 4; ++i) {
    nn::Linear f(6, 6);
    nn::BatchNorm1d norm(6, {.momentum = std::nullopt});
    net.parts.push_back(models::part([=](const Tensor& x) { return norm(f(x)); }, {{"f", f}, {"norm", norm}}));
  }
  net.data = models::unet(layout).data;
  return net;
}

TEST(Uneven, RunningStatisticsOfAllBatchesAlike) {
  for (auto& layout : {kOne, kData, kPipeline, kBoth})
    for (int n : {1, 2}) check(counting, layout, {.micro_batches = n}, {8, 7, 5, 6}, 5e-4);
}

TEST(Uneven, UnderEverySchedule) {
  for (const char* schedule : kSchedules)
    for (auto& layout : {kPipeline, kInterleaved, kBoth, kLong}) {
      check(models::gpt, layout, {.schedule = schedule}, {8, 7, 5, 7}, 2e-5);
      check(models::mlp, layout, {.micro_batches = 5, .schedule = schedule}, {8, 7, 3}, 2e-5);
    }
}

TEST(Uneven, WithZeroRecomputationAndLowerPrecision) {
  for (auto& layout : {kOne, kData, kPipeline, kBoth})
    for (int zero : {0, 1, 2, 3})
      for (bool recompute : {false, true})
        check(models::gpt, layout, {.zero = zero, .recompute = recompute}, {8, 7, 5, 7}, 2e-5);
  for (auto& layout : {kOne, kData, kPipeline, kBoth})
    for (int zero : {0, 2, 3})
      check(models::gpt, layout, {.amp = true, .zero = zero, .recompute = zero == 2, .schedule = "zero_bubble"},
            {8, 7, 5, 7}, 2e-2);
}

struct Predict : nn::Graph {
  Net& net;
  explicit Predict(Net& n, int micro_batches, bool uneven = true) : net(n) {
    for (size_t p = 0; p < net.parts.size(); ++p) {
      register_module("part" + std::to_string(p), net.parts[p]);
      if (net.layout.stages() > 1) set_stage(net.parts[p], net.stage(p));
    }
    config.set_gradient_accumulation_steps(micro_batches, uneven);
    config.verify();
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor y = net.forward(in[0]);
    return {y, mean(y), mean(y, Dims{0}), argmax(mean(y, Dims{0}), 0), in[0], net.parts[0].parameters()[0]};
  }
};

TEST(Uneven, OutputsAreThoseOfTheWholeBatch) {
  for (auto& layout : {kOne, kData, kPipeline, kBoth})
    for (int64_t rows : {8, 7, 5, 2, 1})
      for (int n : {3, 4}) {
        SCOPED_TRACE(fmt::format("{}, {} rows in {} micro-batches", layout.name, rows, n));
        comm::run_ranks(layout.ranks(), [&](int) {
          Net net = make(models::unet, layout, false);
          NoGradGuard no_grad;
          Tensor x = on(batch(net, 0, rows).x, layout);
          Tensor want = net.forward(x).full();
          Predict predict(net, n);
          auto got = predict(x);
          const auto count = static_cast<int64_t>(rows_of_ranks(rows, layout.dp, n).size());
          auto near = [](const Tensor& a, const Tensor& b) { return max(abs(sub(a, b))).item().as_double() <= 1e-5; };
          ASSERT_EQ(got[0].shape(), want.shape());
          EXPECT_TRUE(near(got[0].full(), want));
          EXPECT_EQ(got[1].numel(), count);
          EXPECT_NEAR(mean(got[1].full()).item().as_double(), mean(want).item().as_double(), 1e-5);
          Tensor columns = got[2].full();
          EXPECT_TRUE(near(count > 1 ? mean(columns, Dims{0}) : columns, mean(want, Dims{0})));
          EXPECT_EQ(got[3].numel(), count);  // whole numbers are left as they are
          EXPECT_EQ(got[3].dtype(), int64);
          ASSERT_EQ(got[4].shape(), x.shape());
          EXPECT_TRUE(near(got[4].full(), x.full()));
          EXPECT_EQ(got[5].shape(), net.parts[0].parameters()[0].shape());
        });
      }
}

TEST(Uneven, MemoryOfAStepIsBoundedByTheSchedule) {
  // In-flight activations of unequal micro-batches: those of the schedule's table, of the largest size.
  auto arena = [](int64_t rows, const char* schedule) {
    int64_t bytes = 0;
    comm::run_ranks(4, [&](int rank) {
      Net net = make(models::mlp, kLong, true);
      auto optimizer = make_optimizer(net);
      Train train(net, optimizer, {.micro_batches = 16, .schedule = schedule});
      Tensor x = on(zeros({rows, 8}), kLong), y = on(zeros({rows}, {.dtype = int64}), kLong);
      train(x, y);
      if (rank == 0) bytes = train.step(0).stats().arena_bytes;
    });
    return bytes;
  };
  for (const char* schedule : {"1f1b", "zero_bubble"})
    EXPECT_LE(arena(16 * 64 - 7, schedule), arena(16 * 64, schedule) * 9 / 8) << schedule;
}

TEST(Uneven, WhatHappensOncePerStepIsSharedByForms) {
  Net net = make(models::mlp, kOne, false);
  auto optimizer = make_optimizer(net);
  Train train(net, optimizer, {.amp = true});
  train(on(zeros({8, 8}), kOne), on(zeros({8}, {.dtype = int64}), kOne));
  const Graph& g = train.step(0).graph();
  EXPECT_EQ(g.variants(), 2);
  EXPECT_EQ(g.variant_of, (std::vector<int8_t>{0, 0, 1}));
  size_t sums = 0, casts = 0;
  std::vector<ValueId> of_variant[2];
  for (auto& n : g.nodes) {
    if (n.kind == NodeKind::kAccumulate) of_variant[n.variant].push_back(n.out[0]), ++sums;
    casts += n.section == Section::kOnceBefore && n.op && std::string_view(n.op->name()) == "cast";
  }
  std::sort(of_variant[0].begin(), of_variant[0].end());
  std::sort(of_variant[1].begin(), of_variant[1].end());
  EXPECT_EQ(of_variant[0], of_variant[1]);
  EXPECT_EQ(sums, 2 * net.parameters().size());
  EXPECT_LE(casts, net.parameters().size()) << "a weight is cast once for all variants";
  EXPECT_EQ(hash(g), hash(train.step(0).graph()));
}

TEST(Uneven, CanBeDrawn) {
  comm::run_ranks(2, [&](int) {
    Net net = make(models::mlp, kPipeline, true);
    auto optimizer = make_optimizer(net);
    Train train(net, optimizer, {});
    train(on(zeros({7, 8}), kPipeline), on(zeros({7}, {.dtype = int64}), kPipeline));
    const Step& step = train.step(0);
    EXPECT_NE(plan_svg(step.graph(), {.title = "uneven"}).find("</svg>"), std::string::npos);
    EXPECT_NE(schedule_svg(step).find("</svg>"), std::string::npos);
    EXPECT_FALSE(memory_text(std::vector<MemoryUse>{memory_use(step)}).empty());
    EXPECT_NE(str(step.graph()).find("variant 1"), std::string::npos);
    EXPECT_NE(train.str().find("3 micro-batches, uneven if need be"), std::string::npos);
  });
}

std::string said(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kValue);
    return e.what();
  }
  ADD_FAILURE() << "nothing was raised";
  return "";
}

TEST(Uneven, WhatCannotBeDivided) {
  Net net = make(models::unet, kOne, false);
  NoGradGuard no_grad;
  // Without the option, the error names it.
  Predict strict(net, 3, false);
  EXPECT_NE(said([&] {
              strict(zeros({8, 6}));
            }).find("config.set_gradient_accumulation_steps(3, uneven=True)"),
            std::string::npos);
  // Rows that do not belong together.
  struct Two : nn::Graph {
    bool transposed = false;
    std::vector<Tensor> build(TensorList in) override {
      return {transposed ? transpose(in[0], 0, 1) : mul(in[0], mean(in[1]))};
    }
  } two;
  two.config.set_gradient_accumulation_steps(3, true);
  const std::string rows = said([&] { two(zeros({8, 6}), zeros({5})); });
  EXPECT_NE(rows.find("input 1 of the graph has 5 rows and input 0 has 8"), std::string::npos) << rows;
  // Rows as another axis than the first.
  two.transposed = true;
  const std::string axis = said([&] { two(zeros({8, 6}), zeros({8})); });
  EXPECT_NE(axis.find("Only the first axis of an output"), std::string::npos) << axis;
}

}  // namespace
}  // namespace holon::graph
