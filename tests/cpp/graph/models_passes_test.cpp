// All passes on small models of the kinds that matter.
#include <functional>

#include "holon/dispatch/autocast.h"
#include "holon/nn/attention.h"
#include "holon/nn/conv.h"
#include "holon/nn/norm.h"
#include "holon/nn/rnn.h"
#include "holon/ops/activation.h"
#include "holon/ops/cast.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"
#include "tests/cpp/graph/small_graphs.h"

namespace holon::graph {
namespace {

using namespace testing;

// What a model computes from its inputs, the last of which is the target.
using Build = std::function<Tensor(Capture&, const std::vector<Tensor>&)>;

Captured capture_model(nn::Module& model, std::vector<Tensor> inputs, const Build& build, int micro_batches = 1) {
  Captured c;
  c.inputs = std::move(inputs);
  c.parameters = model.parameters();
  Capture capture;
  capture.set_micro_batches(micro_batches);
  for (auto& [name, t] : model.named_parameters()) capture.name_external(t, "model." + name, true);
  for (auto& [name, t] : model.named_buffers()) capture.name_external(t, "model." + name, false);
  std::vector<Tensor> given;
  for (auto& t : c.inputs) given.push_back(capture.input_like(t));
  Tensor loss = build(capture, given);
  loss.backward();
  optim::Rule rule;
  // Not Adam: it would make much of the rounding of gradients that are zero (a bias before a norm).
  rule.lr = 0.1;
  rule.momentum = 0.9;
  capture.add_update(rule, c.parameters);
  c.g = capture.finish(std::vector<Tensor>{loss});
  for (auto& [name, t] : model.named_buffers()) c.parameters.push_back(t);  // compared as well
  return c;
}

void place(nn::Module& model, const Layout& l, const nn::LayoutByName& layout) {
  if (l.is_local()) return;
  model.to_global(l.placement, l.whole);  // every rank has drawn the same
  model.to_global(l.placement, layout);
}
struct Language : nn::Module {
  Tensor table;
  std::vector<nn::TransformerEncoderLayer> layers;
  Language() {
    table = register_parameter("table", randn({16, 8}) * Scalar(0.3));
    for (int i = 0; i < 2; ++i) {
      layers.emplace_back(
          8, 2,
          nn::TransformerLayerOptions{.dim_feedforward = 16, .dropout = 0.1, .batch_first = true, .norm_first = true});
      register_module("layer" + std::to_string(i), layers.back());
    }
  }
};

Captured language(const Layout& l, int micro_batches, bool amp) {
  manual_seed(5);
  Language model;
  place(model, l, [&](const std::string& name, const Tensor&) {
    const int last = l.whole.size() - 1;
    auto is = [&](const char* part) { return name.find(part) != std::string::npos; };
    if (!l.up[last].is_split()) return l.whole;
    if (is("linear1.") || is("in_proj")) return l.whole.with(last, sbp::split(0));
    if (is("linear2.weight") || is("out_proj.weight")) return l.whole.with(last, sbp::split(1));
    return l.whole;
  });
  std::vector<Tensor> inputs;
  for (int i = 0; i < 2; ++i) {
    NoGradGuard guard;
    inputs.push_back(clamp_max(floor(abs(random(l, {8, 4}, l.data, 50 + i, 5.0))), Scalar(15.0)).to(int64));
  }
  return capture_model(
      model, inputs,
      [&](Capture& capture, const std::vector<Tensor>& in) {
        Tensor x = embedding(model.table, in[0]);
        for (size_t i = 0; i < model.layers.size(); ++i) {
          capture.push_scope("model.layer" + std::to_string(i));
          std::optional<AutocastGuard> casts;
          if (amp) casts.emplace();
          x = model.layers[i](x);
          capture.pop_scope();
        }
        Tensor logits = matmul(x, transpose(model.table, 0, 1));
        return cross_entropy(reshape(logits, {-1, 16}), reshape(in[1], {-1}));
      },
      micro_batches);
}

struct Images : nn::Module {
  nn::Conv2d conv{3, 4, {3, 3}, {.padding = {1}}};
  nn::BatchNorm norm{4};
  nn::Linear head{4, 5};
  Images() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("head", head);
  }
};

Captured images(const Layout& l, int micro_batches) {
  manual_seed(5);
  Images model;
  place(model, l, [&](const std::string&, const Tensor&) { return l.whole; });
  std::vector<Tensor> inputs{random(l, {8, 3, 6, 6}, l.data, 50), random(l, {8, 5}, l.data, 51)};
  return capture_model(
      model, inputs,
      [&](Capture& capture, const std::vector<Tensor>& in) {
        capture.push_scope("model.layer1");
        Tensor x = relu(model.norm(model.conv(in[0])));
        capture.pop_scope();
        Tensor d = model.head(mean(x, Dims{2, 3})) - in[1];
        return mean(d * d);
      },
      micro_batches);
}

struct Sequences : nn::Module {
  nn::LSTM lstm{4, 6, {.num_layers = 2, .batch_first = true, .dropout = 0.2}};
  nn::Linear head{6, 3};
  Sequences() {
    register_module("lstm", lstm);
    register_module("head", head);
  }
};

Captured sequences(const Layout& l, int micro_batches) {
  manual_seed(5);
  Sequences model;
  place(model, l, [&](const std::string&, const Tensor&) { return l.whole; });
  std::vector<Tensor> inputs{random(l, {8, 5, 4}, l.data, 50), random(l, {8, 3}, l.data, 51)};
  return capture_model(
      model, inputs,
      [&](Capture& capture, const std::vector<Tensor>& in) {
        capture.push_scope("model.layer1");
        Tensor x = model.lstm(in[0])[0];
        capture.pop_scope();
        Tensor d = model.head(mean(x, Dims{1})) - in[1];
        return mean(d * d);
      },
      micro_batches);
}

CompileOptions all_passes(int zero) {
  CompileOptions o;
  o.verify = true;
  o.bucket_bytes = 4096;
  o.zero_stage = zero;
  o.recompute = {"model.layer1"};
  return o;
}

void check(const std::function<Captured(int)>& make, double tolerance) {
  for (int micro_batches : {1, 2})
    for (int zero : {0, 2, 3}) {
      Captured before = make(micro_batches), after = make(micro_batches);
      // Gradients have to be summed for there to be something to compare with.
      CompileOptions plain = only({"stages", "accumulate"});
      run_passes(before.g, plain);
      if (zero == 3) store_shards(after.g, all_passes(zero));
      run_passes(after.g, all_passes(zero));
      expect_equal(run(before), run(after), tolerance);
    }
}

TEST(Models, Transformer) {
  for (bool amp : {false, true}) {
    auto on = [amp](const Layout& l) { check([&](int n) { return language(l, n, amp); }, amp ? 2e-2 : 1e-5); };
    on(local());
    comm::run_ranks(2, [&](int) {
      on(data_parallel());
      on(tensor_parallel());
    });
    comm::run_ranks(4, [&](int) { on(grid()); });
  }
}

// What is cast to two bytes is gathered in two bytes.
TEST(Models, Zero3GathersWhatIsRead) {
  comm::run_ranks(2, [](int) {
    Captured c = language(data_parallel(), 1, true);
    CompileOptions o = all_passes(3);
    store_shards(c.g, o);
    run_passes(c.g, o);
    auto gathers = [&](DType dtype) {
      return count(c.g, [&](const Node& n) {
        return n.kind == NodeKind::kBoxing && n.pinned && n.section == Section::kForward &&
            c.g.value(n.in[0]).dtype == dtype && c.g.value(n.in[0]).shape.size() == 2;
      });
    };
    EXPECT_EQ(gathers(bfloat16), 8);  // four matrices in each of the layers
    EXPECT_EQ(gathers(float32), 1);   // the table
  });
}

TEST(Models, ConvolutionWithBatchNorm) {
  auto on = [](const Layout& l) { check([&](int n) { return images(l, n); }, 1e-5); };
  on(local());
  comm::run_ranks(2, [&](int) { on(data_parallel()); });
}

TEST(Models, Lstm) {
  auto on = [](const Layout& l) { check([&](int n) { return sequences(l, n); }, 1e-5); };
  on(local());
  comm::run_ranks(2, [&](int) { on(data_parallel()); });
}

}  // namespace
}  // namespace holon::graph
