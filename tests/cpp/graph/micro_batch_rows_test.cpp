// Inputs and outputs whose rows are split between different numbers of ranks: the rows of a micro-batch belong
// together, and outputs have the batch's order.
#include <gtest/gtest.h>

#include <numeric>

#include "graph/training_models.h"
#include "holon/base/fmt.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/nn_graph.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/ops/unary.h"

namespace holon::graph {
namespace {

// A placement can be made where its ranks are.
struct Ranks {
  Dims hierarchy;
  std::vector<int64_t> list;
};
struct Where {
  Ranks ranks;
  NdSbp sbp;
  Placement placement() const { return Placement("cpu", ranks.hierarchy, ranks.list); }
};

Tensor put(const Tensor& local, const Where& at) {
  const Placement p = at.placement();
  return local.to_global(p, NdSbp::filled(at.sbp.size(), sbp::broadcast())).to_global(p, at.sbp);
}

// Row i of the outputs is made of row i of both inputs.
struct Rows : nn::Graph {
  std::vector<Where> out;
  std::vector<Tensor> build(TensorList in) override {
    Tensor sum = on_stage_of(in[0], in[1]) + mean(in[1], Dims{1}, true) * 10;
    TensorVec all{mean(sum * sum)};
    for (auto& w : out) all.push_back(sum.to_global(w.placement(), w.sbp));
    return all;
  }
  static Tensor on_stage_of(const Tensor& x, const Tensor& other) {
    return x.placement() == other.placement() && x.nd_sbp() == other.nd_sbp()
        ? x
        : x.to_global(other.placement(), other.nd_sbp());
  }
};

void check(int ranks, const Where& a, const Where& b, const std::vector<Where>& out) {
  comm::run_ranks(ranks, [&](int) {
    NoGradGuard no_grad;
    for (int64_t rows : {24, 12, 13, 7, 3, 1})
      for (int n : {1, 2, 3, 4}) {
        SCOPED_TRACE(fmt::format("{} and {}, {} rows, {} micro-batches", a.sbp.str(), b.sbp.str(), rows, n));
        Tensor x = models::images({rows, 3}, 1), y = models::images({rows, 2}, 2);
        Tensor want = x + mean(y, Dims{1}, true) * 10;
        Rows graph;
        graph.out = out;
        graph.config.set_gradient_accumulation_steps(n, true);
        graph.config.verify();
        auto got = graph(put(x, a), put(y, b));
        EXPECT_NEAR(mean(got[0]).full().item().as_double(), mean(want * want).item().as_double(), 1e-4);
        for (size_t o = 0; o < out.size(); ++o) {
          EXPECT_EQ(got[o + 1].shape(), want.shape());
          EXPECT_LE(max(abs(sub(got[o + 1].full(), want))).item().as_double(), 1e-5)
              << "output as " << out[o].sbp.str();
        }
      }
  });
}

TEST(MicroBatchRows, BelongTogetherWhateverTheirSplit) {
  const Ranks two{{2}, {0, 1}}, three{{3}, {0, 1, 2}}, grid{{2, 2}, {0, 1, 2, 3}};
  const Sbp s = sbp::split(0), b = sbp::broadcast();
  for (auto& p : {two, three}) {
    const int n = static_cast<int>(p.list.size());
    check(n, {p, {s}}, {p, {b}}, {{p, {s}}, {p, {b}}});
    check(n, {p, {b}}, {p, {s}}, {{p, {s}}, {p, {b}}});
    check(n, {p, {s}}, {p, {s}}, {{p, {b}}, {p, {s}}});
  }
  check(4, {grid, {s, s}}, {grid, {s, b}}, {{grid, {s, s}}, {grid, {s, b}}, {grid, {b, b}}});
  check(4, {grid, {s, b}}, {grid, {b, b}}, {{grid, {s, b}}, {grid, {b, b}}});
  check(4, {grid, {b, b}}, {grid, {s, s}}, {{grid, {s, s}}, {grid, {s, b}}, {grid, {b, b}}});
}

TEST(MicroBatchRows, AlsoBetweenStages) {
  const Ranks two{{2}, {0, 1}}, one{{1}, {2}}, other{{2}, {2, 3}};
  const Sbp s = sbp::split(0), b = sbp::broadcast();
  check(3, {two, {s}}, {one, {b}}, {{one, {b}}});
  check(4, {two, {s}}, {other, {b}}, {{other, {b}}, {other, {s}}});
}

TEST(MicroBatchRows, SplitsThatDoNotFitAreRefused) {
  const Ranks three{{3}, {0, 1, 2}}, two{{2}, {0, 1}};
  comm::run_ranks(3, [&](int) {
    NoGradGuard no_grad;
    Rows graph;
    graph.config.set_gradient_accumulation_steps(2);
    try {
      graph(put(zeros({12, 3}), {three, {sbp::split(0)}}), put(zeros({12, 2}), {two, {sbp::split(0)}}));
      ADD_FAILURE() << "nothing was raised";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kValue);
      EXPECT_NE(std::string(e.what()).find("rows are split between ranks differently"), std::string::npos) << e.what();
    }
  });
}

TEST(MicroBatchRows, AnOutputSplitFurtherThanTheInputsIsRefused) {
  const Ranks two{{2}, {0, 1}};
  comm::run_ranks(2, [&](int) {
    NoGradGuard no_grad;
    Rows graph;
    graph.out = {{two, {sbp::split(0)}}};
    graph.config.set_gradient_accumulation_steps(2);
    const Where whole{two, {sbp::broadcast()}};
    try {
      graph(put(zeros({12, 3}), whole), put(zeros({12, 2}), whole));
      ADD_FAILURE() << "nothing was raised";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kValue);
      EXPECT_NE(std::string(e.what()).find("would be in another order"), std::string::npos) << e.what();
    }
  });
}

// A target that every rank has whole, beside rows that are split: as the eager step on the batch.
TEST(MicroBatchRows, AWholeTargetOfSplitRows) {
  comm::run_ranks(2, [&](int) {
    const Ranks two{{2}, {0, 1}};
    const Placement p("cpu", {0, 1});
    struct Train : nn::Graph {
      nn::Linear f{6, 4};
      optim::SGD sgd;
      explicit Train(const Placement& p) : sgd((f.to_global(p, {sbp::broadcast()}), f.parameters()), {.lr = 0.5}) {
        register_module("f", f);
        add_optimizer(sgd);
      }
      std::vector<Tensor> build(TensorList in) override {
        Tensor loss = cross_entropy(f(in[0]), in[1]);
        loss.backward();
        return {loss};
      }
    };
    manual_seed(3);
    Train eager(p);
    manual_seed(3);
    Train train(p);
    train.config.set_gradient_accumulation_steps(2, true);
    for (int64_t rows : {8, 7, 8, 5}) {
      Tensor x = put(models::images({rows, 6}, 1), {two, {sbp::split(0)}}),
             y = put(models::numbers({rows}, 4, 2), {two, {sbp::broadcast()}});
      const Tensor in[] = {x, y};
      Tensor want = eager.build(in)[0];
      eager.sgd.step();
      eager.sgd.zero_grad();
      EXPECT_NEAR(mean(train(x, y)[0]).full().item().as_double(), want.full().item().as_double(), 1e-5);
    }
    for (size_t i = 0; i < 2; ++i)
      EXPECT_LE(max(abs(sub(eager.f.parameters()[i].full(), train.f.parameters()[i].full()))).item().as_double(), 1e-5);
  });
}

}  // namespace
}  // namespace holon::graph
