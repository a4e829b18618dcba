// What a graph refuses: every rank raises, says where, and what to do.
#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include "graph/training_models.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/random_state.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/nn_graph.h"
#include "holon/graph/step.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/create.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"

namespace holon::graph {
namespace {

using models::Layout;
using models::Net;

constexpr Layout kOne{"1"}, kPipeline{.name = "pp2", .pp = 2}, kData{.name = "dp2", .dp = 2};

struct Train : nn::Graph {
  Net net;
  optim::SGD optimizer;
  std::function<Tensor(const Tensor& x, const Tensor& y)> loss;
  explicit Train(Net n) : net(placed(std::move(n))), optimizer(net.parameters(), {.lr = 0.1}) {
    loss = [this](const Tensor& x, const Tensor& y) { return net.loss(x, y); };
    for (size_t p = 0; p < net.parts.size(); ++p) {
      register_module("part" + std::to_string(p), net.parts[p]);
      if (net.layout.stages() > 1) set_stage(net.parts[p], net.stage(p));
    }
    add_optimizer(optimizer);
  }
  std::vector<Tensor> build(TensorList in) override {
    Tensor l = loss(in[0], in[1]);
    l.backward();
    return {l};
  }
  using nn::Graph::set_activation_checkpointing;
  using nn::Graph::set_stage;
  double step(int i = 0, int64_t rows = models::kRows) {
    auto [x, y] = net.data(i);
    return mean((*this)(on(slice(x, 0, 0, rows)), on(slice(y, 0, 0, rows)))[0]).item().as_double();
  }
  Tensor on(const Tensor& local) const {
    return local.to_global(net.layout.placement(0), net.layout.whole())
        .to_global(net.layout.placement(0), net.layout.batch());
  }

 private:
  static Net placed(Net n) {
    n.place();
    return n;
  }
};

// What each rank's error says; "" where there was none.
std::vector<std::string> errors(int ranks, const std::function<void(int rank)>& f) {
  std::vector<std::string> said(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](int rank) {
    manual_seed(5);
    try {
      f(rank);
    } catch (const Error& e) {
      said[static_cast<size_t>(rank)] = e.what();
    }
  });
  return said;
}

void expect_all(const std::vector<std::string>& said, std::initializer_list<const char*> parts) {
  for (size_t r = 0; r < said.size(); ++r)
    for (auto* part : parts)
      EXPECT_NE(said[r].find(part), std::string::npos) << "rank " << r << " says: " << said[r] << "\nnot: " << part;
}

TEST(BadInput, StagesThatSkipANumber) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kPipeline));
    train.set_stage(train.net.parts[2], 3);
    train.set_stage(train.net.parts[3], 3);
    train.step();
  });
  expect_all(said, {"no module in stage 1", "part2 in stage 3", "without gaps"});
}

TEST(BadInput, AStageThatReadsALaterOne) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kPipeline));
    train.set_stage(train.net.parts[1], 1);
    train.set_stage(train.net.parts[2], 0);
    train.step();
  });
  expect_all(said, {"part2", "of stage 0, reads what stage 1 computes", "set_stage()"});
}

TEST(BadInput, AStagesTensorOnAnotherPlacement) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kPipeline));
    train.loss = [&](const Tensor& x, const Tensor& y) {
      Tensor h = x;
      for (auto& p : train.net.parts) h = p(h);  // nobody brings it to the second stage
      return cross_entropy(h, y);
    };
    train.step();
  });
  expect_all(said, {"part2", "to_global", "was captured"});
}

TEST(BadInput, MicroBatchesThatDoNotDivide) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kData));
    train.config.set_gradient_accumulation_steps(3);
    train.step();
  });
  expect_all(said, {"input 0", "8 rows", "3 micro-batches on 2 ranks do not divide", "multiple of 6"});
}

TEST(BadInput, AnOptimizerOfParametersThatAreNotUsed) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kData));
    Net other = models::mlp(kData);
    other.place();
    train.loss = [&](const Tensor& x, const Tensor& y) { return other.loss(x, y); };
    train.step();
  });
  expect_all(said, {"add_optimizer", "no gradient", "16 parameters"});
}

TEST(BadInput, ASecondGraphOverTheSameParameters) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kData));
    train.step();
    struct Other : nn::Graph {
      optim::SGD optimizer;
      explicit Other(const Net& net) : optimizer(net.parameters(), {.lr = 0.1}) { add_optimizer(optimizer); }
      std::vector<Tensor> build(TensorList in) override { return {in[0]}; }
    } other(train.net);
    other(train.on(train.net.data(0).x));
  });
  expect_all(said, {"updated by another graph", "Train", "delete the other first"});
}

TEST(BadInput, InputsOnOtherRanks) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kData));
    train.step();
    train.loss = [&](const Tensor& x, const Tensor& y) { return cross_entropy(train.net.parts[0](x), y); };
    Placement p("cpu", {1});
    auto [x, y] = train.net.data(0);
    train(x.to_global(p, sbp::broadcast()), y.to_global(p, sbp::broadcast()));
  });
  expect_all(said, {"part0", "to_global", "was captured"});
}

TEST(BadInput, LocalInputsOfAGlobalModel) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kData));
    train.step();
    train.loss = [&](const Tensor& x, const Tensor& y) { return cross_entropy(train.net.parts[0](x), y); };
    auto [x, y] = train.net.data(0);
    train(x, y);
  });
  expect_all(said, {"part0", "to_global"});
}

TEST(BadInput, AStepOfOtherShapes) {
  auto said = errors(1, [](int) {
    Tensor w = ones({4});
    std::unique_ptr<Step> step;
    {
      Capture capture;
      capture.set_micro_batches(2);
      Tensor out = mul(capture.input_like(ones({8, 4})), w);
      step = std::make_unique<Step>(capture.finish({&out, 1}), CompileOptions{});
    }
    std::vector<Tensor> in{ones({6, 4})};
    step->run(in);
  });
  expect_all(said, {"input 0", "[6, 4]", "compiled for", "[8, 4]"});
}

TEST(BadInput, RanksThatCaptureDifferentGraphs) {
  auto said = errors(2, [](int rank) {
    Train train(models::mlp(kData));
    train.loss = [&](const Tensor& x, const Tensor& y) {
      Tensor h = train.net.parts[0](x);
      return cross_entropy(train.net.parts[1](rank == 1 ? sigmoid(h) : tanh(h)), y);
    };
    train.step();
  });
  expect_all(said, {"different graphs", "rank 0: ", "tanh(", "rank 1: ", "sigmoid(", "same build()"});
}

TEST(BadInput, RanksOfWhichOneHasMoreToDo) {
  auto said = errors(2, [](int rank) {
    Train train(models::mlp(kData));
    train.loss = [&](const Tensor& x, const Tensor& y) {
      Tensor l = train.net.loss(x, y);
      return rank == 1 ? mul(l, 2) : l;
    };
    train.step();
  });
  expect_all(said, {"different graphs", "rank 1: ", "mul_scalar("});
}

TEST(BadInput, RanksOfAPipelineThatCaptureDifferentGraphs) {
  auto said = errors(2, [](int rank) {
    Train train(models::mlp(kPipeline));
    train.loss = [&](const Tensor& x, const Tensor& y) { return train.net.loss(rank == 1 ? relu(x) : x, y); };
    train.step();
  });
  expect_all(said, {"different graphs", "rank 1: ", "relu("});
}

TEST(BadInput, RanksOfOtherConfigs) {
  auto said = errors(2, [](int rank) {
    Train train(models::mlp(kData));
    if (rank == 1) train.config.enable_zero(true, 2);
    train.step();
  });
  expect_all(said, {"ZeRO 0", "ZeRO 2", "same config"});
}

TEST(BadInput, ARankThatRaisesInBuild) {
  auto said = errors(2, [](int rank) {
    Train train(models::mlp(kData));
    train.loss = [&](const Tensor& x, const Tensor& y) {
      if (rank == 1) fail_value("the milk is sour");
      return train.net.loss(x, y);
    };
    train.step();
  });
  EXPECT_NE(said[1].find("the milk is sour"), std::string::npos) << said[1];
  EXPECT_NE(said[0].find("rank 1"), std::string::npos) << said[0];
}

TEST(BadInput, AScheduleThatDoesNotExist) {
  for (auto& layout : {kPipeline, kData}) {
    auto said = errors(2, [&](int) {
      Train train(models::mlp(layout));
      train.config.set_schedule("one_by_one");
      train.step();
    });
    expect_all(said, {"one_by_one", "1f1b", "zero_bubble"});
  }
}

TEST(BadInput, AMemoryBudgetThatCannotBeMet) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kData));
    train.config.set_memory_budget(64);
    train.step();
  });
  expect_all(said, {"budget", "64"});
}

TEST(BadInput, APathToRecomputeThatIsNotThere) {
  auto said = errors(1, [](int) {
    Train train(models::mlp(kOne));
    train.loss = [&](const Tensor& x, const Tensor& y) { return cross_entropy(train.net.parts[0](x), y); };
    train.set_activation_checkpointing(train.net.parts[3]);
    train.step();
  });
  expect_all(said, {"part3"});
}

// A graph that refused an input goes on with those that fit.
TEST(BadInput, IsForgotten) {
  auto said = errors(2, [](int) {
    Train train(models::mlp(kData));
    train.config.set_gradient_accumulation_steps(2);
    const double first = train.step(0);
    EXPECT_THROW(train.step(1, 6), Error);
    EXPECT_LT(train.step(0), first);
  });
  for (auto& s : said) EXPECT_EQ(s, "");
}

}  // namespace
}  // namespace holon::graph
