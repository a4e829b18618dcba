// A small convolutional network that learns to tell synthetic digits: seven-segment figures, moved and blurred by
// noise. The images of a batch are divided among the ranks; the parameters are the same on all.
//   holon-launch --nproc_per_node 2 ./cnn
#include <CLI/CLI.hpp>
#include <iostream>
#include <numeric>

#include "check.h"
namespace flow = holon;
namespace nn = flow::nn;
using flow::sbp::broadcast, flow::sbp::split;

// The ten figures as images [10, 1, 16, 16].
flow::Tensor figures(flow::Placement placement) {
  // Bars of a seven-segment display: first row, first column, rows, columns. Then which of them each digit lights.
  constexpr int kBars[7][4] = {{3, 5, 1, 6}, {3, 10, 5, 1}, {8, 10, 5, 1}, {12, 5, 1, 6},
                               {8, 5, 5, 1}, {3, 5, 5, 1},  {8, 5, 1, 6}};
  constexpr int kDigits[10] = {0b0111111, 0b0000110, 0b1011011, 0b1001111, 0b1100110,
                               0b1101101, 0b1111101, 0b0000111, 0b1111111, 0b1101111};
  auto images = flow::zeros({10, 1, 16, 16});
  auto pixels = images.data<float>();
  for (int digit = 0; digit < 10; ++digit)
    for (int bar = 0; bar < 7; ++bar)
      if (kDigits[digit] >> bar & 1)
        for (int r = 0; r < kBars[bar][2]; ++r)
          for (int c = 0; c < kBars[bar][3]; ++c)
            pixels[static_cast<size_t>(digit * 256 + (kBars[bar][0] + r) * 16 + kBars[bar][1] + c)] = 1;
  return images.to_global(placement, broadcast());
}

int main(int argc, char** argv) {
  int steps = 60;
  CLI::App app("Trains a convolutional network, its batches divided among the ranks");
  app.add_option("--steps", steps, "updates");
  CLI11_PARSE(app, argc, argv);

  std::vector<int64_t> ranks(static_cast<size_t>(flow::world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto everywhere = flow::placement("cpu", ranks);

  flow::manual_seed(1);
  nn::ConvOptions conv{.padding = {1}, .bias = false, .placement = everywhere, .sbp = broadcast()};
  nn::BatchNormOptions norm{.placement = everywhere, .sbp = broadcast()};  // statistics are those of the whole batch
  nn::LinearOptions linear{.placement = everywhere, .sbp = broadcast()};
  nn::Sequential model{nn::Conv2d(1, 8, {3}, conv),
                       nn::BatchNorm2d(8, norm),
                       nn::ReLU(),
                       nn::MaxPool2d(2),
                       nn::Conv2d(8, 16, {3}, conv),
                       nn::BatchNorm2d(16, norm),
                       nn::ReLU(),
                       nn::MaxPool2d(2),
                       nn::Flatten(),
                       nn::Linear(16 * 4 * 4, 10, linear)};
  nn::CrossEntropyLoss loss_of;
  flow::optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});

  auto digits = figures(everywhere);
  auto batch = [&](int64_t size) {
    auto target = flow::randint(0, 10, {size}, {.placement = everywhere, .sbp = split(0)});
    auto clean = flow::embedding(digits.reshape({10, 256}), target).reshape({size, 1, 16, 16});
    return std::pair(clean + flow::randn({size, 1, 16, 16}, {.placement = everywhere, .sbp = split(0)}) * 0.4, target);
  };

  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    auto [x, target] = batch(64);
    auto loss = loss_of(model(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item().as_double();
    if (step == 0) first = last;
    if (flow::rank() == 0 && step % 20 == 0) std::cout << "step " << step << " loss " << last << "\n";
  }

  model.eval();
  flow::NoGradGuard guard;
  auto [x, target] = batch(200);
  double right = flow::mean(flow::eq(flow::argmax(model(x), 1), target).to(flow::float32)).item().as_double();
  if (flow::rank() == 0) std::cout << "loss " << first << " -> " << last << ", right: " << 100 * right << " %\n";
  return expect(last < 0.2 * first && right > 0.9);
}
