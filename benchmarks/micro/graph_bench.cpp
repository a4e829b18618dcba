// What a compiled step costs: an instruction beside its kernel, a training step of small layers against the same one
// run eagerly, and compiling by the node. One rank. One JSON object a line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "holon/base/fmt.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/step.h"
#include "holon/graph/virtual_rank.h"
#include "holon/kernels/elementwise.h"
#include "holon/kernels/gemm.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/attention.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/shape.h"
#include "holon/optim.h"
#include "holon/optim/optimizer.h"
#include "holon/tensor.h"

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
  std::printf("{\"name\": \"graph: %s\", \"value\": %.4f, \"unit\": \"%s\", \"against\": \"%s\", \"ratio\": %.3f}\n",
              name.c_str(), value, unit, against, ratio);
  std::fflush(stdout);
}

struct Layers {
  std::vector<flow::Tensor> weights, biases;
  Layers(const std::vector<int64_t>& widths) {
    for (size_t i = 0; i + 1 < widths.size(); ++i) {
      weights.push_back(flow::mul(flow::randn({widths[i + 1], widths[i]}), 0.05).detach());
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

std::unique_ptr<flow::graph::Step> compiled(const Layers& layers, const flow::Tensor& x, const flow::Tensor& y,
                                            std::vector<std::string> disabled = {}) {
  flow::graph::Capture capture;
  flow::Tensor images = capture.input_like(x), classes = capture.input_like(y);
  flow::Tensor loss = layers.loss(images, classes);
  loss.backward();
  capture.add_update(flow::optim::rule_of(flow::optim::SgdOptions{.lr = 0.01}), layers.parameters());
  flow::graph::CompileOptions options;
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
  report(fmt::format("step of {} ({} instructions)", name, step->stats().instructions), of_graph, "us", "eager",
         (of_eager + again) / 2 / of_graph);
  report(fmt::format("memory of {}", name), static_cast<double>(step->stats().arena_bytes) / 1024, "KiB",
         "values without sharing",
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
    flow::graph::CompileOptions options;
    step = std::make_unique<flow::graph::Step>(capture.finish({&t, 1}), options);
  }
  std::vector<flow::Tensor> in{x};
  flow::Array out = flow::Array::empty({4, 4}, flow::float32), a = x.array(), b = w.array();
  double kernel = microseconds([&] { flow::kernels::matmul(a, b, out); }, 20000);
  double all = microseconds([&] { step->run(in); }, 20) / kOps;
  report("an instruction beside its kernel", all - kernel, "us", "a goal of 0.2 us",
         0.2 / std::max(all - kernel, 1e-3));
}

void compiling() {
  std::vector<int64_t> widths(400, 32);
  flow::Tensor x = flow::randn({8, 32}), y = flow::randint(0, 32, {8});
  Layers layers(widths);
  auto start = Clock::now();
  auto step = compiled(layers, x, y);
  double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
      static_cast<double>(step->stats().captured_nodes);
  report(fmt::format("compiling, {} nodes", step->stats().captured_nodes), us, "us a node", "a goal of 20 us", 20 / us);
}

// GPT-3 as the specification places it: 64 stages of 6 x 8 ranks, data-parallel by 6 and tensor-parallel by 8; for one
// of the ranks, without data.
struct Gpt3 {
  static constexpr int64_t kWidth = 12288, kHeads = 96, kWords = 51200, kLength = 2048;
  int layers, stages, dp, tp;

  struct Block {
    flow::Tensor n1, b1, qkv, qkv_b, out, out_b, n2, b2, up, up_b, down, down_b;
  };
  std::vector<Block> blocks;
  flow::Tensor words, places, norm, norm_b;
  std::vector<flow::Tensor> parameters;

  flow::Placement ranks_of(int stage) const {
    std::vector<int64_t> ranks;
    for (int64_t r = 0; r < dp * tp; ++r) ranks.push_back(stage * dp * tp + r);
    return flow::Placement("cpu", {dp, tp}, ranks);
  }
  int stage_of(int layer) const { return layer * stages / layers; }

  flow::Tensor make(const flow::Dims& shape, const flow::Placement& p, flow::Sbp along_tp) {
    flow::Tensor t = flow::randn(shape, {.placement = p, .sbp = flow::NdSbp({flow::sbp::broadcast(), along_tp})});
    t.set_requires_grad();
    parameters.push_back(t);
    return t;
  }

  explicit Gpt3(int layers, int stages, int dp, int tp) : layers(layers), stages(stages), dp(dp), tp(tp) {
    auto b = flow::sbp::broadcast();
    auto s0 = flow::sbp::split(0), s1 = flow::sbp::split(1);
    words = make({kWords, kWidth}, ranks_of(0), s0);
    places = make({kLength, kWidth}, ranks_of(0), b);
    for (int i = 0; i < layers; ++i) {
      auto p = ranks_of(stage_of(i));
      blocks.push_back({make({kWidth}, p, b), make({kWidth}, p, b), make({3 * kWidth, kWidth}, p, s0),
                        make({3 * kWidth}, p, s0), make({kWidth, kWidth}, p, s1), make({kWidth}, p, b),
                        make({kWidth}, p, b), make({kWidth}, p, b), make({4 * kWidth, kWidth}, p, s0),
                        make({4 * kWidth}, p, s0), make({kWidth, 4 * kWidth}, p, s1), make({kWidth}, p, b)});
    }
    norm = make({kWidth}, ranks_of(stages - 1), b);
    norm_b = make({kWidth}, ranks_of(stages - 1), b);
  }

  flow::Tensor loss(flow::graph::Capture& capture, const flow::Tensor& x, const flow::Tensor& y) const {
    const int64_t rows = x.size(0), length = x.size(1);
    flow::Tensor h = flow::add(flow::embedding(words, x), flow::slice(places, 0, 0, length));
    flow::NdSbp along_batch({flow::sbp::split(0), flow::sbp::broadcast()});
    for (int i = 0; i < layers; ++i) {
      capture.push_scope("blocks." + std::to_string(i), stage_of(i));
      const Block& k = blocks[static_cast<size_t>(i)];
      h = h.to_global(ranks_of(stage_of(i)), along_batch);
      flow::Tensor n = flow::layer_norm(h, {kWidth}, k.n1, k.b1);
      flow::Tensor q = flow::reshape(flow::linear(n, k.qkv, k.qkv_b), {rows, length, kHeads, 3, kWidth / kHeads});
      auto part = [&](int64_t which) {
        return flow::transpose(flow::squeeze(flow::slice(q, 3, which, which + 1), flow::Dims{3}), 1, 2);
      };
      flow::Tensor a = flow::scaled_dot_product_attention(part(0), part(1), part(2), {}, 0.0, true);
      a = flow::reshape(flow::transpose(a, 1, 2), {rows, length, kWidth});
      h = flow::add(h, flow::linear(a, k.out, k.out_b));
      n = flow::layer_norm(h, {kWidth}, k.n2, k.b2);
      h = flow::add(h, flow::linear(flow::gelu(flow::linear(n, k.up, k.up_b)), k.down, k.down_b));
      capture.pop_scope();
    }
    capture.push_scope("head", stages - 1);
    auto p = ranks_of(stages - 1);
    h = flow::layer_norm(h, {kWidth}, norm, norm_b);
    flow::Tensor head = words.to_global(p, flow::NdSbp({flow::sbp::broadcast(), flow::sbp::split(0)}));
    flow::Tensor out = flow::cross_entropy(flow::reshape(flow::linear(h, head), {rows * length, kWords}),
                                           flow::reshape(y.to_global(p, along_batch), {rows * length}));
    capture.pop_scope();
    return out;
  }
};

void gpt3(int layers, int stages, int dp, int tp) {
  flow::graph::VirtualRank rank(dp * tp * (stages / 2) + 5 % (dp * tp), stages * dp * tp, 8);
  auto start = Clock::now();
  Gpt3 model(layers, stages, dp, tp);
  std::unique_ptr<flow::graph::Step> step;
  auto first = model.ranks_of(0);
  flow::NdSbp along_batch({flow::sbp::split(0), flow::sbp::broadcast()});
  {
    flow::graph::Capture capture;
    capture.set_micro_batches(8);
    flow::Tensor x = capture.input({dp, Gpt3::kLength}, flow::int64, flow::intern_spec(first, along_batch), {});
    flow::Tensor y = capture.input({dp, Gpt3::kLength}, flow::int64, flow::intern_spec(first, along_batch), {});
    flow::Tensor loss = model.loss(capture, x, y);
    loss.backward();
    capture.add_update(flow::optim::rule_of(flow::optim::AdamOptions{}), model.parameters);
    step = std::make_unique<flow::graph::Step>(capture.finish({&loss, 1}), flow::graph::CompileOptions{});
  }
  double s = std::chrono::duration<double>(Clock::now() - start).count();
  const auto& stats = step->stats();
  report(fmt::format("compiling GPT-3 of {} layers for a rank of {} ({} nodes, {} instructions, {:.1f} GiB of values)",
                     layers, stages * dp * tp, stats.captured_nodes, stats.instructions,
                     static_cast<double>(stats.arena_bytes) / (1 << 30)),
         s, "s", "a goal of 5 s", 5 / s);
  std::fputs(step->passes().c_str(), stderr);
  std::fprintf(stderr, "passes %.3f s, lowering %.3f s\n", stats.passes_s, stats.lowering_s);
}

}  // namespace

int main() {
  std::vector<int64_t> narrow(21, 64);
  model("20 layers of 64, batch 16", narrow, 16, 200);
  model("784-512-512-10, batch 256", {784, 512, 512, 10}, 256, 5);
  instruction();
  compiling();
  gpt3(96, 64, 6, 8);
  gpt3(96, 2, 1, 1);
  gpt3(24, 8, 6, 8);
}
