// Mixed parallelism in a LeNet for MNIST: the convolutions are data parallel on two ranks, the hidden layer is on the
// first, the output layer on the second. Two devices of one process are ranks as threads; under the launcher the same
// program runs as two processes.
//   HOLON_DATA_DIR=... ./mixed_parallelism_lenet [EPOCHS]
//   HOLON_DATA_DIR=... holon-launch --nproc_per_node 2 ./mixed_parallelism_lenet [EPOCHS]
#include <cstdlib>
#include <iostream>

#include "check.h"
namespace flow = holon;
namespace nn = flow::nn;
using flow::sbp::broadcast, flow::sbp::split;

constexpr int64_t kBatch = 100;

struct LeNet : nn::Layer<LeNet> {
  flow::Placement both = flow::placement("cpu", {0, 1}), p0 = flow::placement("cpu", {0}),
                  p1 = flow::placement("cpu", {1});
  nn::Conv2d conv1{1, 32, {5}, {.padding = {2}, .placement = both, .sbp = broadcast()}};
  nn::Conv2d conv2{32, 64, {5}, {.padding = {2}, .placement = both, .sbp = broadcast()}};
  nn::Linear hidden{7 * 7 * 64, 512, {.placement = p0, .sbp = broadcast()}};
  nn::Linear outlayer{512, 10, {.placement = p1, .sbp = broadcast()}};
  nn::MaxPool2d pool{{2}};
  nn::Dropout dropout{0.5};
  LeNet() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("hidden", hidden);
    register_module("dropout", dropout);
    register_module("outlayer", outlayer);
    for (auto& [name, p] : named_parameters()) {
      if (p.ndim() > 1)
        nn::init::trunc_normal_(p, 0, 0.1, -0.2, 0.2);
      else
        nn::init::constant_(p, 0);
    }
  }
  flow::Tensor forward(const flow::Tensor& images) const {
    auto pool1 = pool(flow::relu(conv1(images)));
    auto pool2 = pool(flow::relu(conv2(pool1)));
    auto rows = pool2.reshape({images.size(0), -1}).to_global(p0, broadcast());
    auto at_hidden = dropout(flow::relu(hidden(rows)));
    return outlayer(at_hidden.to_global(p1, broadcast()));
  }
};

struct TrainJob : nn::Graph {
  LeNet lenet;
  flow::optim::SGD sgd{lenet.parameters(), {.lr = 0.1}};
  TrainJob() {
    register_module("lenet", lenet);
    add_optimizer(sgd);
  }
  std::vector<flow::Tensor> build(flow::TensorList in) override {
    auto logits = lenet(in[0]);
    auto loss = flow::cross_entropy(logits, in[1].to_global(lenet.p1, broadcast()));
    loss.backward();
    return {loss};
  }
};

int train(int epochs) {
  flow::manual_seed(1);
  TrainJob train_job;
  auto& lenet = train_job.lenet;
  flow::data::DataLoader batches(flow::data::mnist(),
                                 {.batch_size = kBatch, .drop_last = true, .placement = lenet.both, .sbp = split(0)});
  double first = 0, last = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    int i = 0;
    for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
      last = train_job(batch)[0].item().as_double();
      if (first == 0) first = last;
      if (i++ % 20 == 0 && flow::rank() == 0) std::cout << last << "\n";
    }
  }
  return expect(last < first / 3 && lenet.hidden.weight.placement() == lenet.p0 &&
                lenet.outlayer.weight.placement() == lenet.p1);
}

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? std::atoi(argv[1]) : 50;
  return on_ranks(2, [=] { return train(epochs); });
}
