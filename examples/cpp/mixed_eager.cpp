// Mixed parallelism: the first stage runs data parallel on ranks 0 and 1, the second model parallel on ranks 2 and 3.
//   holon-launch --nproc_per_node 4 ./mixed_eager
#include <iostream>

#include "check.h"
namespace flow = holon;
namespace nn = flow::nn;

struct Stage : nn::Layer<Stage> {
  nn::Parameter w;
  Stage(int64_t in, int64_t out, flow::Placement placement, flow::NdSbp sbp)
      : w(register_parameter("w", flow::randn({in, out}, {.placement = placement, .sbp = sbp}))) {}
  flow::Tensor operator()(const flow::Tensor& x) const { return flow::matmul(x, w); }
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

int main() {
  Model model;
  auto x = flow::randn({4, 5}, {.placement = model.p01, .sbp = flow::sbp::split(0)});
  auto [out0, out1] = model(x);
  std::cout << out0.shape().str() << " " << out1.shape().str() << "\n";  // [4, 8] [4, 3]

  auto expected = flow::matmul(flow::matmul(x.full(), model.stage0.w.full()), model.stage1.w.full());
  bool forward = out0.nd_sbp() == flow::sbp::split(0) && out1.nd_sbp() == flow::sbp::split(1) && close(out1, expected);
  // Backward crosses the stages the other way: both weights get a gradient that is distributed as they are.
  out1.sum().backward();
  bool backward =
      model.stage0.w.grad().spec() == model.stage0.w.spec() && model.stage1.w.grad().spec() == model.stage1.w.spec();
  return expect(forward && backward);
}
