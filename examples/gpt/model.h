// A GPT of bytes, written once for one rank and for many: the twin of model.py.
//
// The blocks are shared out among the stages of a pipeline, each of which has ranks of its own. A stage's placement has
// two rank dimensions: data parallel and tensor parallel. Activations are split by rows over the first; attention heads
// and the hidden layer of each block are split over the second. Every layout is in Layout; what has to be sent
// follows from it.
#pragma once

#include <holon/graph/nn_graph.h>
#include <holon/holon.h>

#include <cmath>

namespace gpt {

namespace flow = holon;
namespace nn = holon::nn;
using flow::Tensor;

struct Layout {
  flow::Placement placement;
  flow::NdSbp rows{flow::sbp::split(0), flow::sbp::broadcast()};      // inputs: each data-parallel group has its rows
  flow::NdSbp whole{flow::sbp::broadcast(), flow::sbp::broadcast()};  // embeddings, norms
  flow::NdSbp column{flow::sbp::broadcast(), flow::sbp::split(0)};    // weights [out, in] by their outputs
  flow::NdSbp row{flow::sbp::broadcast(), flow::sbp::split(1)};       // weights [out, in] by their inputs

  // One for each stage of a pipeline.
  static std::vector<Layout> over(int64_t dp, int64_t tp, int64_t stages = 1, const std::string& device = "cpu") {
    std::vector<Layout> layouts;
    for (int64_t s = 0; s < stages; ++s) {
      std::vector<int64_t> ranks;
      for (int64_t r = 0; r < dp * tp; ++r) ranks.push_back(s * dp * tp + r);
      layouts.push_back({flow::placement(device, {dp, tp}, ranks)});
    }
    return layouts;
  }
};

struct Attention : nn::Layer<Attention> {
  int64_t heads;
  nn::Linear qkv, out;
  Attention(int64_t width, int64_t heads, const Layout& l)
      : heads(heads),
        qkv(register_module("qkv", nn::Linear(width, 3 * width, {.placement = l.placement, .sbp = l.column}))),
        out(register_module("out", nn::Linear(width, width, {.placement = l.placement, .sbp = l.row}))) {}

  Tensor forward(const Tensor& x) const {
    int64_t b = x.size(0), t = x.size(1), width = x.size(2);
    // Outputs are ordered by head first, so that a split by heads leaves q, k and v of a head together.
    auto parts = flow::chunk(qkv(x).reshape({b, t, heads, -1}).transpose(1, 2), 3, -1);
    auto y =
        flow::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);  // no mask, no dropout, causal
    return out(y.transpose(1, 2).reshape({b, t, width}));
  }
};

struct Block : nn::Layer<Block> {
  int stage;
  flow::Placement placement;
  nn::LayerNorm norm1;
  Attention attention;
  nn::LayerNorm norm2;
  nn::Linear up, down;
  Block(int64_t width, int64_t heads, const Layout& l, int stage)
      : stage(stage),
        placement(l.placement),
        norm1(register_module("norm1", nn::LayerNorm({width}, {.placement = l.placement, .sbp = l.whole}))),
        attention(register_module("attention", Attention(width, heads, l))),
        norm2(register_module("norm2", nn::LayerNorm({width}, {.placement = l.placement, .sbp = l.whole}))),
        up(register_module("up", nn::Linear(width, 4 * width, {.placement = l.placement, .sbp = l.column}))),
        down(register_module("down", nn::Linear(4 * width, width, {.placement = l.placement, .sbp = l.row}))) {}

  Tensor forward(const Tensor& input) const {
    auto x = input + attention(norm1(input));
    return x + down(flow::gelu(up(norm2(x)), {.approximate = "tanh"}));
  }
};

struct GPT : nn::Layer<GPT> {
  std::vector<Layout> layouts;  // of the stages
  nn::Embedding tokens;
  nn::Parameter positions;
  nn::ModuleList<Block> blocks;
  nn::LayerNorm norm;
  nn::Linear head;

  GPT(int64_t layers, int64_t width, int64_t heads, int64_t length, std::vector<Layout> stages,
      int64_t vocabulary = 256)
      : layouts(std::move(stages)),
        tokens(register_module(
            "tokens", nn::Embedding(vocabulary, width, {.placement = first().placement, .sbp = first().whole}))),
        positions(register_parameter(
            "positions", flow::zeros({length, width}, {.placement = first().placement, .sbp = first().whole}))),
        norm(nn::LayerNorm({width}, {.placement = last().placement, .sbp = last().whole})),
        head(nn::Linear(width, vocabulary, {.bias = false, .placement = last().placement, .sbp = last().whole})) {
    register_module("blocks", blocks);
    for (int64_t i = 0; i < layers; ++i) {
      auto stage = static_cast<size_t>(i) * layouts.size() / static_cast<size_t>(layers);
      blocks.push_back(Block(width, heads, layouts[stage], static_cast<int>(stage)));
    }
    register_module("norm", norm);
    register_module("head", head);
    double small = 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
    for (auto& [name, parameter] : named_parameters()) {
      if (name.ends_with("bias"))
        nn::init::constant_(parameter, 0);
      else if (parameter.ndim() == 2)
        nn::init::normal_(parameter, 0, name.ends_with("out.weight") || name.ends_with("down.weight") ? small : 0.02);
    }
  }

  const Layout& first() const { return layouts.front(); }
  const Layout& last() const { return layouts.back(); }

  // The scores of the bytes that follow each of seen [rows, length].
  Tensor forward(const Tensor& seen) const {
    auto x = tokens(seen) + positions;
    for (auto& block : blocks) {
      if (x.spec()->placement != block.placement) x = x.to_global(block.placement, first().rows);
      x = block(x);
    }
    return head(norm(x));
  }

  struct Pair {
    Tensor seen, following;  // on the first and on the last stage
  };
  // Of rows [rows, length + 1], which every rank has alike: what the model sees, and the byte that follows each of
  // those.
  Pair pair(const Tensor& rows) const {
    auto place = [&](const Layout& l, int64_t from, int64_t to) {
      return flow::data::place(flow::slice(rows, 1, from, to), l.placement, l.rows);
    };
    return {place(first(), 0, rows.size(1) - 1), place(last(), 1, rows.size(1))};
  }

  // The mean loss, on the last stage.
  Tensor loss(const Tensor& seen, const Tensor& following) const {
    return flow::cross_entropy(flow::flatten((*this)(seen), 0, 1), flow::flatten(following));
  }
};

// The eager step of train(), compiled, with the parts of the model as stages of a pipeline.
struct Step : nn::Graph {
  GPT model;
  Step(const GPT& m, flow::optim::Optimizer& optimizer, int micro_batches, bool amp = false) : model(m) {
    register_module("model", model);
    add_optimizer(optimizer);
    config.set_gradient_accumulation_steps(micro_batches);
    config.enable_amp(amp);
    if (model.layouts.size() == 1) return;
    set_stage(model.tokens, 0, model.first().placement);
    for (auto& block : model.blocks) set_stage(block, block.stage, block.placement);
    set_stage(model.norm, static_cast<int>(model.layouts.size()) - 1, model.last().placement);
    set_stage(model.head, static_cast<int>(model.layouts.size()) - 1, model.last().placement);
  }
  std::vector<flow::Tensor> build(flow::TensorList in) override {
    auto loss = model.loss(in[0], in[1]);
    loss.backward();
    return {loss};
  }
};

}  // namespace gpt
