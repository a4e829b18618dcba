// Small models of the usual kinds, cut into parts that stages of a pipeline take, with their data and layouts.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "holon/graph.h"
#include "holon/nn.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/create.h"
#include "holon/ops/linalg.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/optim.h"

namespace holon::graph::models {

// How a model lies on ranks: dp x tp ranks to a stage, pp groups of ranks, chunks stages to a group.
struct Layout {
  const char* name;
  int dp = 1, tp = 1, pp = 1, chunks = 1;
  int ranks() const { return dp * tp * pp; }
  int stages() const { return pp * chunks; }
  Placement placement(int stage) const {
    std::vector<int64_t> r;
    for (int i = 0; i < dp * tp; ++i) r.push_back((stage % pp) * dp * tp + i);
    return dp > 1 && tp > 1 ? Placement("cpu", Dims{dp, tp}, r) : Placement("cpu", r);
  }
  // of tensors whose rows the data-parallel ranks share out, and that lie along `along` on the tensor-parallel ones
  NdSbp sbp(Sbp rows, Sbp along) const {
    if (dp > 1 && tp > 1) return NdSbp{rows, along};
    return dp > 1 ? NdSbp{rows} : tp > 1 ? NdSbp{along} : NdSbp{sbp::broadcast()};
  }
  NdSbp whole() const { return sbp(sbp::broadcast(), sbp::broadcast()); }
  NdSbp batch() const { return sbp(sbp::split(0), sbp::broadcast()); }
  NdSbp weight(int axis) const { return sbp(sbp::broadcast(), sbp::split(axis)); }
};

// A module of others and a function that calls them.
struct Part : nn::Layer<Part> {
  std::function<Tensor(const Tensor&)> run;
  Tensor forward(const Tensor& x) const { return run(x); }
};

struct Batch {
  Tensor x, y;
};

struct Net {
  std::string name;
  std::vector<Part> parts;
  std::vector<std::pair<std::string, NdSbp>> split;  // by the names inside of a part, for the layout
  std::function<Tensor(const Net&, Tensor)> connect;
  std::function<Batch(int step)> data;  // local tensors, alike on every rank
  Layout layout;
  double lr = 0.05;
  DType dtype = float32;

  int stage(size_t part) const { return static_cast<int>(part) * layout.stages() / static_cast<int>(parts.size()); }
  // x, made by some stage, where the part is.
  Tensor at(const Tensor& x, size_t part, const NdSbp* as = nullptr) const {
    Placement p = layout.placement(stage(part));
    return x.placement() == p ? x : x.to_global(p, as ? *as : layout.batch());
  }
  Tensor forward(Tensor x) const {
    if (connect) return connect(*this, x);
    for (size_t p = 0; p < parts.size(); ++p) x = parts[p](at(x, p));
    return x;
  }
  Tensor loss(const Tensor& x, const Tensor& y) const {
    Tensor logits = forward(x);
    Tensor target = at(y, parts.size() - 1);
    if (target.ndim() > 1) target = reshape(target, {-1});
    return cross_entropy(logits, target);
  }
  std::vector<Tensor> parameters() const {
    std::vector<Tensor> all;
    for (auto& p : parts)
      for (auto& t : p.parameters())
        if (std::none_of(all.begin(), all.end(), [&](auto& other) { return other.is_same(t); })) all.push_back(t);
    return all;
  }
  // Drawn alike for every layout, then laid out.
  void place() {
    for (size_t p = 0; p < parts.size(); ++p) {
      Placement where = layout.placement(stage(p));
      parts[p].to(dtype);
      std::vector<std::pair<std::string, NdSbp>> patterns = split;
      patterns.emplace_back("*", layout.whole());
      parts[p].to_global(where, layout.whole());
      if (layout.tp > 1) parts[p].to_global(where, nn::layout_by_patterns(patterns));
    }
  }
};

// A number in [-1, 1) for each i, the same everywhere.
inline float noise(uint64_t i) {
  i = (i + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  i = (i ^ (i >> 31)) * 0x94d049bb133111ebull;
  return static_cast<float>(static_cast<int64_t>(i >> 24) & 0xffff) / 32768.0f - 1.0f;
}
inline Tensor images(const Dims& shape, int step) {
  Tensor t = zeros(shape);
  auto d = t.data<float>();
  for (size_t i = 0; i < d.size(); ++i) d[i] = noise(static_cast<uint64_t>(step) * 100003 + i);
  return t;
}
inline Tensor numbers(const Dims& shape, int below, int step) {
  Tensor t = zeros(shape, {.dtype = int64});
  auto d = t.data<int64_t>();
  for (size_t i = 0; i < d.size(); ++i)
    d[i] = static_cast<int64_t>((noise(static_cast<uint64_t>(step) * 7919 + i + 17) + 1) * 0.5f *
                                static_cast<float>(below));
  return t;
}

template <class F>
Part part(F run, std::initializer_list<std::pair<const char*, nn::Module>> modules) {
  Part p;
  for (auto& [name, m] : modules) p.register_module(name, m);
  p.run = std::move(run);
  return p;
}

constexpr int kRows = 8;

inline Net mlp(const Layout& layout) {
  Net net{.name = "MLP", .layout = layout};
  for (int i = 0; i < 4; ++i) {
    nn::Linear up(8, 12), down(12, 8);
    nn::Dropout drop(i % 2 ? 0.25 : 0);
    net.parts.push_back(part([=](const Tensor& x) { return add(x, down(drop(relu(up(x))))); },
                             {{"up", up}, {"down", down}, {"drop", drop}}));
  }
  net.split = {{"up.*", layout.weight(0)}, {"down.weight", layout.weight(1)}};
  net.data = [](int step) { return Batch{images({kRows, 8}, step), numbers({kRows}, 8, step)}; };
  return net;
}

inline Net lenet(const Layout& layout) {
  Net net{.name = "LeNet", .layout = layout};
  nn::Conv2d c1(1, 4, {3}, {.padding = {1}}), c2(4, 8, {3}, {.padding = {1}});
  nn::MaxPool2d pool1({2});
  nn::AvgPool2d pool2({2});
  nn::Linear f1(8 * 4, 12), f2(12, 4);
  net.parts.push_back(part([=](const Tensor& x) { return pool1(relu(c1(x))); }, {{"c1", c1}}));
  net.parts.push_back(part([=](const Tensor& x) { return pool2(relu(c2(x))); }, {{"c2", c2}}));
  net.parts.push_back(part([=](const Tensor& x) { return relu(f1(flatten(x, 1))); }, {{"f1", f1}}));
  net.parts.push_back(part([=](const Tensor& x) { return f2(x); }, {{"f2", f2}}));
  net.split = {{"c1.*", layout.weight(0)},
               {"c2.weight", layout.weight(1)},
               {"f1.*", layout.weight(0)},
               {"f2.weight", layout.weight(1)}};
  net.data = [](int step) { return Batch{images({kRows, 1, 8, 8}, step), numbers({kRows}, 4, step)}; };
  return net;
}

// Embedding and head share their weight, which lie in the first and the last part.
inline Net gpt(const Layout& layout) {
  constexpr int64_t kVocabulary = 12, kWidth = 8, kLength = 6;
  Net net{.name = "GPT", .layout = layout};
  nn::Embedding tokens(kVocabulary, kWidth);
  Part first, last;
  first.register_module("tokens", tokens);
  Tensor positions = first.register_parameter("positions", mul(randn({kLength, kWidth}), 0.1));
  first.run = [=](const Tensor& x) { return add(tokens(x), positions); };
  net.parts.push_back(first);
  for (int i = 0; i < 2; ++i) {
    nn::TransformerEncoderLayer block(
        kWidth, 2, {.dim_feedforward = 12, .dropout = 0.1, .batch_first = true, .norm_first = true, .packed = false});
    net.parts.push_back(part([=](const Tensor& x) { return block(x, {.is_causal = true}); }, {{"block", block}}));
  }
  nn::LayerNorm norm({kWidth});
  last.register_module("norm", norm);
  last.run = [=](const Tensor& x) { return reshape(norm(x), {-1, kWidth}); };
  net.parts.push_back(last);
  net.connect = [tokens](const Net& n, Tensor x) {
    for (size_t p = 0; p < n.parts.size(); ++p) x = n.parts[p](n.at(x, p));
    NdSbp whole = n.layout.whole();
    return linear(x, n.at(tokens.weight, n.parts.size() - 1, &whole));
  };
  net.split = {{"block.self_attn.?_proj_weight", layout.weight(0)},
               {"block.linear1.*", layout.weight(0)},
               {"block.self_attn.out_proj.weight", layout.weight(1)},
               {"block.linear2.weight", layout.weight(1)}};
  net.data = [](int step) {
    return Batch{numbers({kRows, kLength}, kVocabulary, step), numbers({kRows, kLength}, kVocabulary, step + 1000)};
  };
  return net;
}

inline Net lstm_net(const Layout& layout) {
  constexpr int64_t kVocabulary = 12, kWidth = 6, kLength = 5;
  Net net{.name = "LSTM", .layout = layout};
  nn::Embedding tokens(kVocabulary, kWidth);
  nn::LSTM one(kWidth, kWidth, {.batch_first = true}), two(kWidth, kWidth, {.batch_first = true});
  nn::Linear head(kWidth, kVocabulary);
  net.parts.push_back(part([=](const Tensor& x) { return one(tokens(x))[0]; }, {{"tokens", tokens}, {"one", one}}));
  net.parts.push_back(part([=](const Tensor& x) { return two(x)[0]; }, {{"two", two}}));
  net.parts.push_back(part([=](const Tensor& x) { return tanh(x); }, {}));
  net.parts.push_back(part([=](const Tensor& x) { return head(reshape(x, {-1, kWidth})); }, {{"head", head}}));
  net.split = {{"tokens.weight", layout.weight(1)}, {"head.*", layout.weight(0)}};
  net.data = [](int step) {
    return Batch{numbers({kRows, kLength}, kVocabulary, step), numbers({kRows, kLength}, kVocabulary, step + 1000)};
  };
  return net;
}

// The 18 layers of ResNet-18, thin. Its rate is so low because normalised layers over a few rows multiply any
// difference of rounding from step to step.
inline Net resnet18_of(const Layout& layout, std::string name, Tensor (*bend)(const Tensor&)) {
  Net net{.name = std::move(name), .layout = layout, .lr = 1e-3};
  const int64_t widths[] = {4, 4, 6, 8};
  nn::Conv2d stem(3, 4, {3}, {.padding = {1}, .bias = false});
  nn::BatchNorm2d stem_norm(4);
  int64_t in = 4;
  for (int group = 0; group < 4; ++group) {
    Part all;
    std::vector<std::function<Tensor(const Tensor&)>> blocks;
    if (group == 0) {
      all.register_module("stem", stem);
      all.register_module("stem_norm", stem_norm);
      blocks.push_back([=](const Tensor& x) { return bend(stem_norm(stem(x))); });
    }
    for (int b = 0; b < 2; ++b) {
      const int64_t out = widths[group];
      const int64_t stride = b == 0 && group > 0 ? 2 : 1;
      nn::Conv2d c1(in, out, {3}, {.stride = {stride}, .padding = {1}, .bias = false}),
          c2(out, out, {3}, {.padding = {1}, .bias = false});
      nn::BatchNorm2d n1(out), n2(out);
      Part block;
      block.register_module("c1", c1);
      block.register_module("n1", n1);
      block.register_module("c2", c2);
      block.register_module("n2", n2);
      std::function<Tensor(const Tensor&)> shortcut = [](const Tensor& x) { return x; };
      if (stride != 1 || in != out) {
        nn::Conv2d down(in, out, {1}, {.stride = {stride}, .bias = false});
        nn::BatchNorm2d down_norm(out);
        block.register_module("down", down);
        block.register_module("down_norm", down_norm);
        shortcut = [=](const Tensor& x) { return down_norm(down(x)); };
      }
      block.run = [=](const Tensor& x) { return bend(add(n2(c2(bend(n1(c1(x))))), shortcut(x))); };
      all.register_module("block" + std::to_string(b), block);
      blocks.push_back([block](const Tensor& x) { return block(x); });
      in = out;
    }
    if (group == 3) {
      nn::Linear head(8, 4);
      all.register_module("head", head);
      blocks.push_back([head](const Tensor& x) { return head(mean(x, Dims{2, 3})); });
    }
    all.run = [blocks](const Tensor& x) {
      Tensor y = x;
      for (auto& b : blocks) y = b(y);
      return y;
    };
    net.parts.push_back(all);
  }
  net.split = {{"block?.c1.weight", layout.weight(0)},
               {"block?.n1.weight", layout.weight(0)},
               {"block?.n1.bias", layout.weight(0)},
               {"block?.c2.weight", layout.weight(1)}};
  net.data = [](int step) { return Batch{images({kRows, 3, 12, 12}, step), numbers({kRows}, 4, step)}; };
  return net;
}
inline Net resnet18(const Layout& layout) {
  return resnet18_of(layout, "ResNet-18", [](const Tensor& x) { return relu(x); });
}
// Without the steps that relu's gradient has.
inline Net resnet18_smooth(const Layout& layout) {
  return resnet18_of(layout, "smooth ResNet-18", [](const Tensor& x) { return gelu(x); });
}

// What the first part makes is read by the last as well.
inline Net unet(const Layout& layout) {
  Net net{.name = "U-Net", .layout = layout};
  for (int i = 0; i < 4; ++i) {
    nn::Linear f(i == 3 ? 12 : 6, 6);
    net.parts.push_back(part([=](const Tensor& x) { return tanh(f(x)); }, {{"f", f}}));
  }
  net.connect = [](const Net& n, Tensor x) {
    Tensor skip = n.parts[0](n.at(x, 0));
    Tensor y = n.parts[2](n.at(n.parts[1](n.at(skip, 1)), 2));
    return n.parts[3](cat({n.at(y, 3), n.at(skip, 3)}, 1));
  };
  net.split = {{"f.*", layout.weight(0)}};
  net.data = [](int step) { return Batch{images({kRows, 6}, step), numbers({kRows}, 6, step)}; };
  return net;
}

}  // namespace holon::graph::models
