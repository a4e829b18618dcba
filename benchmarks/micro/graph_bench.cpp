// What a compiled step costs: an instruction beside its kernel, a training step of small layers against the same one run eagerly, and
// compiling by the node. One rank. One JSON object a line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "holon/graph/capture/capture.h"
#include "holon/graph/step.h"
#include "holon/holon.h"
#include "holon/kernels/cpu/elementwise.h"
#include "holon/kernels/cpu/gemm.h"
#include "holon/optim/optimizer.h"

namespace {

namespace flow = holon;
using Clock = std::chrono::steady_clock;

double microseconds(const std::function<void()>& f, int calls) {
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    auto start = Clock::now();
    for (int k = 0; k < calls; ++k) f();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void report(const std::string& name, double value, const char* unit, const char* against, double ratio) {
  std::printf("{\"name\": \"graph: %s\", \"value\": %.4f, \"unit\": \"%s\", \"against\": \"%s\", \"ratio\": %.3f}\n", name.c_str(), value, unit, against, ratio);
  std::fflush(stdout);
}

struct Layers {
  std::vector<flow::Tensor> weights, biases;
  Layers(const std::vector<int64_t>& widths) {
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      weights.push_back(flow::mul_scalar(flow::randn({widths[i + 1], widths[i]}), 0.05).detach());
      biases.push_back(flow::zeros({widths[i + 1]}));
      weights.back().set_requires_grad();
      biases.back().set_requires_grad();
    }
  }
  std::vector<flow::Tensor> parameters() const {
    std::vector<flow::Tensor> all;
    for (size_t i = 0; i < weights.size(); ++i) all.push_back(weights[i]), all.push_back(biases[i]);
    return all;
  }
  flow::Tensor loss(flow::Tensor x, const flow::Tensor& y) const {
    for (size_t i = 0; i < weights.size(); ++i) {
      x = flow::linear(x, weights[i], biases[i]);
      if (i + 1 < weights.size()) x = flow::relu(x);
    }
    return flow::cross_entropy(x, y);
  }
};

std::unique_ptr<flow::graph::Step> compiled(const Layers& layers, const flow::Tensor& x, const flow::Tensor& y, std::vector<std::string> disabled = {}) {
  flow::graph::Capture capture;
  flow::Tensor images = capture.input_like(x), classes = capture.input_like(y);
  flow::Tensor loss = layers.loss(images, classes);
  loss.backward();
  capture.add_update(flow::optim::rule_of(flow::optim::SgdOptions{.lr = 0.01}), layers.parameters());
  flow::graph::StepOptions options;
  options.disabled_passes = std::move(disabled);
  return std::make_unique<flow::graph::Step>(capture.finish({&loss, 1}), options);
}

void model(const char* name, const std::vector<int64_t>& widths, int64_t batch, int calls) {
  flow::Tensor x = flow::randn({batch, widths.front()}), y = flow::randint(0, widths.back(), {batch});
  Layers a(widths), b(widths);
  flow::optim::SGD optimizer(a.parameters(), {.lr = 0.01});
  auto eager = [&] {
    a.loss(x, y).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  auto step = compiled(b, x, y);
  std::vector<flow::Tensor> in{x, y};
  auto run = [&] { step->run(in); };
  double of_eager = microseconds(eager, calls), of_graph = microseconds(run, calls), again = microseconds(eager, calls);
  report(fmt::format("step of {} ({} instructions)", name, step->stats().instructions), of_graph, "us", "eager", (of_eager + again) / 2 / of_graph);
  report(fmt::format("memory of {}", name), static_cast<double>(step->stats().arena_bytes) / 1024, "KiB", "values without sharing",
         static_cast<double>(step->stats().sum_bytes) / static_cast<double>(step->stats().arena_bytes));
}

void instruction() {
  constexpr int kOps = 1000;
  flow::Tensor x = flow::rand({4, 4}), w = flow::rand({4, 4});
  std::unique_ptr<flow::graph::Step> step;
  {
    flow::graph::Capture capture;
    flow::Tensor t = capture.input_like(x);
    for (int i = 0; i < kOps; ++i) t = flow::matmul(t, w);
    flow::graph::StepOptions options;
    step = std::make_unique<flow::graph::Step>(capture.finish({&t, 1}), options);
  }
  std::vector<flow::Tensor> in{x};
  flow::Array out = flow::Array::empty({4, 4}, flow::float32), a = x.array(), b = w.array();
  double kernel = microseconds([&] { flow::kernels::matmul(a, b, out); }, 20000);
  double all = microseconds([&] { step->run(in); }, 20) / kOps;
  report("an instruction beside its kernel", all - kernel, "us", "a goal of 0.2 us", 0.2 / std::max(all - kernel, 1e-3));
}

void compiling() {
  std::vector<int64_t> widths(400, 32);
  flow::Tensor x = flow::randn({8, 32}), y = flow::randint(0, 32, {8});
  Layers layers(widths);
  auto start = Clock::now();
  auto step = compiled(layers, x, y);
  double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(step->stats().captured_nodes);
  report(fmt::format("compiling, {} nodes", step->stats().captured_nodes), us, "us a node", "a goal of 20 us", 20 / us);
}

}  // namespace

int main() {
  std::vector<int64_t> narrow(21, 64);
  model("20 layers of 64, batch 16", narrow, 16, 200);
  model("784-512-512-10, batch 256", {784, 512, 512, 10}, 256, 5);
  instruction();
  compiling();
}
