// A model, trained on two ranks as threads by one compiled step on batches of a data set: what a program asks of an
// installed Holon.
#include <holon/holon.h>

#include <atomic>
#include <cstdio>
#include <memory>

namespace flow = holon;
namespace nn = flow::nn;
using flow::sbp::broadcast, flow::sbp::split;

struct Train : nn::Graph {
  nn::Linear up, down;
  flow::optim::Adam adam;
  explicit Train(flow::Placement both)
      : up(3, 16, {.placement = both, .sbp = split(0)}),
        down(16, 1, {.placement = both, .sbp = split(1)}),
        adam({up.weight, up.bias, down.weight, down.bias}, {.lr = 0.02}) {
    register_module("up", up);
    register_module("down", down);
    add_optimizer(adam, [](int64_t step) { return flow::optim::cosine_lr(step, 0.02, 0, 400); });
  }
  std::vector<flow::Tensor> build(flow::TensorList in) override {
    auto loss = flow::mse_loss(down(flow::gelu(up(in[0]), {.approximate = "tanh"})), in[1]);
    loss.backward();
    return {loss};
  }
};

int main() {
  auto y = flow::matmul(flow::ones({2, 3}), flow::tensor({{1.0}, {2.0}, {3.0}}));
  std::printf("%s %g\n", y.shape().str().c_str(), y.data<float>()[1]);

  std::atomic<double> loss = 1;
  flow::run_ranks(2, [&](int rank) {
    auto both = flow::placement("cpu", {0, 1});
    flow::manual_seed(1);
    auto x = flow::randn({256, 3});
    auto target = flow::sum(x * x, flow::Dims{1}, true);
    flow::data::DataLoader batches(std::make_shared<flow::data::TensorDataset>(std::vector{x, target}),
                                   {.batch_size = 64, .shuffle = true, .placement = both, .sbp = broadcast()});
    Train train(both);
    for (int epoch = 0; epoch < 100; ++epoch)
      for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
        auto value = train(batch)[0].item().as_double();
        if (rank == 0) loss = value;
      }
  });
  std::printf("%s\n", loss < 0.5 ? "learnt" : "not learnt");
}
