// A GPT of bytes, written once for one rank and for many: the twin of model.py.
//
// The placement has two rank dimensions: data parallel and tensor parallel. Activations are split by rows over the first;
// attention heads and the hidden layer of each block are split over the second. Every layout stands in Layout; what has to be
// sent follows from it.
#pragma once

#include <holon/holon.h>

#include <cmath>
#include <limits>

namespace gpt {

namespace flow = holon;
namespace nn = holon::nn;
using flow::Tensor;

struct Layout {
  flow::Placement placement;
  flow::NdSbp rows{flow::sbp::split(0), flow::sbp::broadcast()};       // inputs: each data-parallel group has its rows
  flow::NdSbp whole{flow::sbp::broadcast(), flow::sbp::broadcast()};   // embeddings, norms
  flow::NdSbp column{flow::sbp::broadcast(), flow::sbp::split(0)};     // weights [out, in] by their outputs
  flow::NdSbp row{flow::sbp::broadcast(), flow::sbp::split(1)};        // weights [out, in] by their inputs

  static Layout over(int64_t dp, int64_t tp) {
    std::vector<int64_t> ranks;
    for (int64_t r = 0; r < dp * tp; ++r) ranks.push_back(r);
    return {flow::placement("cpu", {dp, tp}, ranks)};
  }
};

struct Attention : nn::Module {
  int64_t heads;
  nn::Linear qkv, out;
  Attention(int64_t width, int64_t heads, const Layout& l)
      : heads(heads),
        qkv(register_module("qkv", nn::Linear(width, 3 * width, {.placement = l.placement, .sbp = l.column}))),
        out(register_module("out", nn::Linear(width, width, {.placement = l.placement, .sbp = l.row}))) {}

  Tensor operator()(const Tensor& x, const Tensor& future) const {
    int64_t b = x.size(0), t = x.size(1), width = x.size(2);
    // Outputs are ordered by head first, so that a split by heads leaves q, k and v of a head together.
    auto parts = flow::chunk(qkv(x).reshape({b, t, heads, -1}).transpose(1, 2), 3, -1);
    auto &q = parts[0], &k = parts[1], &v = parts[2];
    auto scores = flow::matmul(q * (1 / std::sqrt(static_cast<double>(width / heads))), k.transpose(2, 3));
    auto weights = flow::softmax(flow::masked_fill(scores, future, -std::numeric_limits<double>::infinity()), -1);
    return out(flow::matmul(weights, v).transpose(1, 2).reshape({b, t, width}));
  }
};

struct Block : nn::Module {
  nn::LayerNorm norm1;
  Attention attention;
  nn::LayerNorm norm2;
  nn::Linear up, down;
  Block(int64_t width, int64_t heads, const Layout& l)
      : norm1(register_module("norm1", nn::LayerNorm({width}, {.placement = l.placement, .sbp = l.whole}))),
        attention(register_module("attention", Attention(width, heads, l))),
        norm2(register_module("norm2", nn::LayerNorm({width}, {.placement = l.placement, .sbp = l.whole}))),
        up(register_module("up", nn::Linear(width, 4 * width, {.placement = l.placement, .sbp = l.column}))),
        down(register_module("down", nn::Linear(4 * width, width, {.placement = l.placement, .sbp = l.row}))) {}

  Tensor operator()(const Tensor& input, const Tensor& future) const {
    auto x = input + attention(norm1(input), future);
    return x + down(flow::gelu(up(norm2(x)), {.approximate = "tanh"}));
  }
};

struct GPT : nn::Module {
  Layout layout;
  nn::Embedding tokens;
  Tensor positions, future;
  nn::ModuleList<Block> blocks;
  nn::LayerNorm norm;
  nn::Linear head;

  GPT(int64_t layers, int64_t width, int64_t heads, int64_t length, const Layout& l, int64_t vocabulary = 256)
      : layout(l),
        tokens(register_module("tokens", nn::Embedding(vocabulary, width, {.placement = l.placement, .sbp = l.whole}))),
        positions(register_parameter("positions", flow::zeros({length, width}, {.placement = l.placement, .sbp = l.whole}))),
        future(flow::triu(flow::ones({length, length}, {.placement = l.placement, .sbp = l.whole, .dtype = flow::boolean}), 1)),
        norm(nn::LayerNorm({width}, {.placement = l.placement, .sbp = l.whole})),
        head(nn::Linear(width, vocabulary, {.bias = false, .placement = l.placement, .sbp = l.whole})) {
    register_module("blocks", blocks);
    for (int64_t i = 0; i < layers; ++i) blocks.push_back(Block(width, heads, l));
    register_module("norm", norm);
    register_module("head", head);
    double last = 0.02 / std::sqrt(2.0 * static_cast<double>(layers));
    for (auto& [name, parameter] : named_parameters()) {
      if (name.ends_with("bias"))
        nn::init::constant_(parameter, 0);
      else if (parameter.ndim() == 2)
        nn::init::normal_(parameter, 0, name.ends_with("out.weight") || name.ends_with("down.weight") ? last : 0.02);
    }
  }

  // The scores of the bytes that follow each of seen [rows, length].
  Tensor operator()(const Tensor& seen) const {
    auto x = tokens(seen) + positions;
    for (auto& block : blocks) x = block(x, future);
    return head(norm(x));
  }

  // The mean loss of rows [rows, length + 1], which every rank has alike: each byte is to be told from those before it.
  Tensor loss(const Tensor& rows) const {
    auto place = [&](int64_t from, int64_t to) { return flow::data::place(flow::slice(rows, 1, from, to), layout.placement, layout.rows); };
    int64_t length = rows.size(1) - 1;
    auto logits = (*this)(place(0, length));
    return flow::cross_entropy(flow::flatten(logits, 0, 1), flow::flatten(place(1, length + 1)));
  }
};

}  // namespace gpt
