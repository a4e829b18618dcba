// A perceptron, trained on all ranks: each loads its own rows of a batch, and the gradients are summed.
//   holon-launch --nproc_per_node 2 build/release/train
#include <holon/holon.h>

#include <cstdio>
#include <memory>

namespace flow = holon;
namespace nn = flow::nn;
using flow::sbp::broadcast, flow::sbp::split;

int main() {
  flow::manual_seed(1);
  auto all = flow::Placement::all("cpu");
  auto x = flow::randn({512, 4});  // every rank draws the same values
  auto y = flow::sum(x * x, flow::Dims{1}, true);
  flow::data::DataLoader batches(std::make_shared<flow::data::TensorDataset>(std::vector{x, y}),
                                 {.batch_size = 64, .shuffle = true, .placement = all, .sbp = split(0)});

  nn::Sequential net{nn::Linear(4, 32, {.placement = all, .sbp = broadcast()}), nn::GELU(),
                     nn::Linear(32, 1, {.placement = all, .sbp = broadcast()})};
  flow::optim::AdamW adam(net.parameters(), {.lr = 0.01});
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 40; ++epoch) {
    for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
      adam.zero_grad();
      auto loss = flow::mse_loss(net(batch[0]), batch[1]);
      loss.backward();
      adam.step();
      last = loss.item<double>();
      if (first == 0) first = last;
    }
  }
  if (flow::rank() == 0) std::printf("%d ranks: the loss fell from %.3g to %.3g\n", flow::world_size(), first, last);
  return last < first / 10 ? 0 : 1;
}
