// Mixed parallelism as a graph: the first stage runs data parallel on ranks 0 and 1, the second model parallel on ranks
// 2 and 3; what both do in a step is captured once and compiled.
//   holon-launch --nproc_per_node 4 ./mixed_graph
#include <iostream>

#include "check.h"
namespace flow = holon;
namespace nn = flow::nn;

struct Stage : nn::Layer<Stage> {
  nn::Parameter w;
  Stage(int64_t in, int64_t out, flow::Placement placement, flow::NdSbp sbp)
      : w(register_parameter("w", flow::randn({in, out}, {.placement = placement, .sbp = sbp}))) {}
  flow::Tensor forward(const flow::Tensor& x) const { return flow::matmul(x, w); }
};

struct Model : nn::Layer<Model> {
  flow::Placement p01 = flow::placement("cpu", {0, 1}), p23 = flow::placement("cpu", {2, 3});
  Stage stage0{5, 8, p01, flow::sbp::broadcast()};
  Stage stage1{8, 3, p23, flow::sbp::split(1)};
  Model() {
    register_module("stage0", stage0);
    register_module("stage1", stage1);
  }
  std::pair<flow::Tensor, flow::Tensor> operator()(const flow::Tensor& x) const {
    auto out0 = stage0(x);
    // The rows come together and go to the second stage's ranks, whole on each.
    auto in1 = out0.to_global(p23, flow::sbp::broadcast());
    return {out0, stage1(in1)};
  }
};

struct Graph : nn::Graph {
  Model model;
  Graph() {
    register_module("model", model);
    set_stage(model.stage0, 0, model.p01);
    set_stage(model.stage1, 1, model.p23);
  }
  std::vector<flow::Tensor> build(flow::TensorList in) override {
    auto [out0, out1] = model(in[0]);
    return {out0, out1};
  }
};

int main() {
  Graph graph;
  // The rows of the batch are split over the ranks of the first stage.
  auto x = flow::randn({4, 5}, {.placement = graph.model.p01, .sbp = flow::sbp::split(0)});
  auto out = graph(x);
  std::cout << out[0].shape().str() << " " << out[1].shape().str() << "\n";  // [4, 8] [4, 3]

  auto expected = flow::matmul(flow::matmul(x.full(), graph.model.stage0.w.full()), graph.model.stage1.w.full());
  return expect(out[0].nd_sbp() == flow::sbp::split(0) && out[1].placement() == graph.model.p23 &&
                close(out[1], expected));
}
