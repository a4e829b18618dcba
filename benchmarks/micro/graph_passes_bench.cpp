// Time of each graph pass per node, on a transformer of about 20,000 nodes (forward, backward, update; 2 x 2 ranks,
// captured by one that waits for none) and on one of half its size: the same time per node says that a pass is linear.
// One JSON object per line; ratio is the time per node of the half one over that of the whole one.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "holon/base/context.h"
#include "holon/graph/capture/capture.h"
#include "holon/graph/passes/pass.h"
#include "holon/ops/activation.h"
#include "holon/ops/attention.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"

namespace {

using namespace holon;
using namespace holon::graph;

struct Model {
  Placement placement = Placement::nested("cpu", {{0, 1}, {2, 3}});
  NdSbp whole = NdSbp::filled(2, sbp::broadcast());
  std::vector<Tensor> parameters;

  Tensor parameter(const Dims& shape, Sbp tensor_parallel) {
    Tensor p = zeros(shape, {.placement = placement, .sbp = whole.with(1, tensor_parallel)});
    p.set_requires_grad();
    parameters.push_back(p);
    return p;
  }
};

Graph transformer(int blocks, int micro_batches) {
  Model m;
  const int64_t width = 64, heads = 4, rows = 8, length = 16;
  struct Block {
    Tensor g1, b1, q, k, v, o, ob, g2, b2, up, upb, down, downb;
  };
  std::vector<Block> all;
  auto s = [](int d) { return sbp::split(d); };
  const Sbp b = sbp::broadcast();
  for (int i = 0; i < blocks; ++i)
    all.push_back({m.parameter({width}, b), m.parameter({width}, b), m.parameter({width, width}, s(0)),
                   m.parameter({width, width}, s(0)), m.parameter({width, width}, s(0)),
                   m.parameter({width, width}, s(1)), m.parameter({width}, b), m.parameter({width}, b),
                   m.parameter({width}, b), m.parameter({4 * width, width}, s(0)), m.parameter({4 * width}, s(0)),
                   m.parameter({width, 4 * width}, s(1)), m.parameter({width}, b)});
  Capture capture;
  capture.set_micro_batches(micro_batches);
  Tensor x =
      capture.input({rows, length, width}, float32, intern_spec(m.placement, m.whole.with(0, sbp::split(0))), {});
  for (int i = 0; i < blocks; ++i) {
    const Block& p = all[static_cast<size_t>(i)];
    const std::string path = "model.block" + std::to_string(i);
    capture.push_scope(path + ".attention");
    Tensor h = layer_norm(x, {width}, p.g1, p.b1);
    auto split = [&](const Tensor& w) {
      return transpose(reshape(linear(h, w), {rows, length, heads, width / heads}), 1, 2);
    };
    Tensor a = scaled_dot_product_attention(split(p.q), split(p.k), split(p.v), {}, 0.0, true);
    x = x + linear(reshape(transpose(a, 1, 2), {rows, length, width}), p.o, p.ob);
    capture.pop_scope();
    capture.push_scope(path + ".mlp");
    h = layer_norm(x, {width}, p.g2, p.b2);
    x = x + linear(gelu(linear(h, p.up, p.upb)), p.down, p.downb);
    capture.pop_scope();
  }
  Tensor loss = mean(x * x);
  loss.backward();
  optim::Rule rule;
  rule.kind = optim::RuleKind::kAdam;
  capture.add_update(rule, m.parameters);
  return capture.finish(std::vector<Tensor>{loss});
}

std::vector<PassReport> time_passes(int blocks, double* verify_us) {
  Graph g = transformer(blocks, 4);
  CompileOptions o;
  o.zero_stage = 1;
  o.bucket_bytes = 1 << 16;
  for (int i = 0; i < blocks; ++i) o.recompute.push_back("model.block" + std::to_string(i));
  std::vector<PassReport> reports;
  Graph once = g;
  run_passes(once, o);  // plans of boxings are known from now on
  for (int n = 0; n < 2; ++n) {
    auto start = std::chrono::steady_clock::now();
    verify(once, "all passes");
    *verify_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
        static_cast<double>(once.nodes.size());
  }
  run_passes(g, o, &reports);
  return reports;
}

}  // namespace

int main(int argc, char** argv) {
  const int blocks = argc > 1 ? std::atoi(argv[1]) : 200;
  Context context(0, 4, 0, 4);
  ContextGuard guard(context);
  double verify_half = 0, verify_whole = 0;
  auto half = time_passes(blocks / 2, &verify_half), whole = time_passes(blocks, &verify_whole);
  auto print = [](const std::string& name, double us, double ratio) {
    std::printf("{\"name\": \"graph_passes/%s\", \"value\": %.3f, \"unit\": \"us a node\", \"against\": \"a graph of "
                "half as many nodes\", \"ratio\": %.2f}\n",
                name.c_str(), us, ratio);
  };
  double total = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    const double a = half[i].us / static_cast<double>(half[i].nodes_before),
                 b = whole[i].us / static_cast<double>(whole[i].nodes_before);
    total += b;
    print(whole[i].name, b, a / b);
  }
  print("all", total, 1);
  print("verify", verify_whole, verify_half / verify_whole);
  std::printf("{\"name\": \"graph_passes/nodes\", \"value\": %lld, \"unit\": \"nodes\", \"against\": \"as captured\", "
              "\"ratio\": 1}\n",
              static_cast<long long>(whole[0].nodes_before));
}
