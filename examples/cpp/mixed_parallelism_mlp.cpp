// Mixed parallelism in a perceptron for MNIST: the hidden layer is data parallel, the output layer model parallel. Two
// devices of one process are ranks as threads; under the launcher the same program runs as two processes.
//   HOLON_DATA_DIR=... ./mixed_parallelism_mlp
//   HOLON_DATA_DIR=... holon-launch --nproc_per_node 2 ./mixed_parallelism_mlp
#include <iostream>

#include "check.h"
namespace flow = holon;
namespace nn = flow::nn;
using flow::sbp::broadcast, flow::sbp::split;

constexpr int64_t kBatch = 100;

struct Mlp : nn::Layer<Mlp> {
  nn::Linear dense1, dense2;
  explicit Mlp(flow::Placement devices)
      : dense1(register_module("dense1", nn::Linear(784, 512, {.placement = devices, .sbp = broadcast()}))),
        // A weight is stored out x in: split(0) divides the columns of the product, the classes.
        dense2(register_module("dense2", nn::Linear(512, 10, {.placement = devices, .sbp = split(0)}))) {
    for (auto& dense : {dense1, dense2}) {
      nn::init::trunc_normal_(dense.weight, 0, 0.1, -0.2, 0.2);
      nn::init::constant_(dense.bias, 0);
    }
  }
  flow::Tensor forward(const flow::Tensor& images) const {
    auto hidden = flow::relu(dense1(images.reshape({images.size(0), -1})));
    return dense2(hidden);
  }
};

struct TrainJob : nn::Graph {
  Mlp mlp;
  flow::optim::SGD sgd{mlp.parameters(), {.lr = 0.1}};
  explicit TrainJob(flow::Placement devices) : mlp(devices) {
    register_module("mlp", mlp);
    add_optimizer(sgd);
  }
  std::vector<flow::Tensor> build(flow::TensorList in) override {
    auto loss = flow::cross_entropy(mlp(in[0]), in[1]);
    loss.backward();
    return {loss};
  }
};

int train() {
  flow::manual_seed(1);
  auto devices = flow::placement("cpu", {0, 1});
  TrainJob train_job(devices);
  flow::data::DataLoader batches(flow::data::mnist(),
                                 {.batch_size = kBatch, .drop_last = true, .placement = devices, .sbp = split(0)});
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 3; ++epoch) {
    int i = 0;
    for (auto batch = batches.next(); !batch.empty(); batch = batches.next()) {
      last = train_job(batch)[0].item().as_double();
      if (first == 0) first = last;
      if (i++ % 20 == 0 && flow::rank() == 0) std::cout << last << "\n";
    }
  }
  return expect(last < first / 3 && train_job.mlp.dense1.weight.nd_sbp() == broadcast() &&
                train_job.mlp.dense2.weight.to_local().size(0) == 5);
}

int main() { return on_ranks(2, train); }
