// A perceptron that learns to tell digits drawn in noise, with its layouts as flags: the rows of a batch over the first
// axis of a grid of ranks, the hidden units over the second.
//   holon-launch --nproc_per_node 4 ./mlp --dp 2 --tp 2
#include <CLI/CLI.hpp>
#include <iostream>

#include "check.h"
namespace flow = holon;
namespace nn = flow::nn;
using flow::sbp::broadcast, flow::sbp::split;

struct Mlp : nn::Layer<Mlp> {
  nn::Linear up, down;
  Mlp(int64_t in, int64_t hidden, int64_t out, flow::Placement grid)
      : up(register_module("up", nn::Linear(in, hidden, {.placement = grid, .sbp = {broadcast(), split(0)}}))),
        down(register_module("down", nn::Linear(hidden, out, {.placement = grid, .sbp = {broadcast(), split(1)}}))) {}
  // Between the layers the hidden units stay split; down's result is a partial sum over the second axis.
  flow::Tensor operator()(const flow::Tensor& x) const { return down(flow::relu(up(x))); }
};

int main(int argc, char** argv) {
  int dp = 1, tp = 1, steps = 100;
  CLI::App app("Trains a perceptron on a grid of dp x tp ranks");
  app.add_option("--dp", dp, "ranks that share the rows of a batch");
  app.add_option("--tp", tp, "ranks that share the hidden units");
  app.add_option("--steps", steps, "updates");
  CLI11_PARSE(app, argc, argv);
  if (dp * tp != flow::world_size()) {
    std::cerr << "--dp times --tp is " << dp * tp << ", but there are " << flow::world_size() << " ranks\n";
    return 2;
  }

  std::vector<int64_t> ranks;
  for (int r = 0; r < dp * tp; ++r) ranks.push_back(r);
  auto grid = flow::placement("cpu", {dp, tp}, ranks);
  flow::NdSbp rows{split(0), broadcast()}, whole{broadcast(), broadcast()};

  flow::manual_seed(1);
  constexpr int64_t kPixels = 64, kClasses = 10, kBatch = 96;
  auto patterns = flow::randn({kClasses, kPixels}, {.placement = grid, .sbp = whole});
  Mlp model(kPixels, 128, kClasses, grid);
  flow::optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  nn::CrossEntropyLoss loss_of;

  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    auto target = flow::randint(0, kClasses, {kBatch}, {.placement = grid, .sbp = rows});
    auto x = flow::embedding(patterns, target) + flow::randn({kBatch, kPixels}, {.placement = grid, .sbp = rows});
    auto loss = loss_of(model(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item().as_double();  // on every rank: reading a global value is collective
    if (step == 0) first = last;
    if (flow::rank() == 0 && step % 20 == 0) std::cout << "step " << step << " loss " << last << "\n";
  }
  if (flow::rank() == 0) std::cout << "loss " << first << " -> " << last << "\n";
  return expect(last < 0.2 * first);
}
