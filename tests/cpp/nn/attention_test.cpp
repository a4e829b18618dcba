#include "holon/nn/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/nn/init.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::nn {
namespace {

double difference(const Tensor& a, const Tensor& b) {
  NoGradGuard guard;
  Tensor x = a.full(), y = b.full();
  return x.shape() == y.shape() ? amax(abs(x - y)).item().as_double() : INFINITY;
}

std::vector<std::string> names(const StateDict& list) {
  std::vector<std::string> out;
  for (auto& [name, t] : list) out.push_back(name);
  return out;
}

TEST(Attention, StateHasPyTorchsNames) {
  EXPECT_EQ(names(MultiheadAttention(4, 2).state_dict()),
            (std::vector<std::string>{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}));
  EXPECT_EQ(names(MultiheadAttention(4, 2, {.bias = false, .kdim = 3}).state_dict()),
            (std::vector<std::string>{"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"}));
  TransformerEncoder encoder(
      2, [] { return TransformerEncoderLayer(4, 2, {.dim_feedforward = 8}); }, LayerNorm({4}));
  EXPECT_EQ(encoder.named_parameters()[0].first, "layers.0.self_attn.in_proj_weight");
  EXPECT_TRUE(encoder.get_parameter("layers.1.linear2.bias").defined() &&
              encoder.get_parameter("norm.weight").defined());
  EXPECT_THROW(MultiheadAttention(6, 4), Error);
  EXPECT_THROW(MultiheadAttention(4, 2, {.kdim = 3, .packed = true}), Error);
}

TEST(Attention, ATransformerIsItsEncoderAndDecoder) {
  Transformer t(
      8, 2, {.num_encoder_layers = 2, .num_decoder_layers = 1, .layers = {.dim_feedforward = 16, .batch_first = true}});
  t.eval();
  Tensor src = randn({2, 5, 8}), tgt = randn({2, 3, 8});
  Tensor y = t(src, tgt, {}, {.is_causal = true});
  EXPECT_EQ(y.shape(), (Dims{2, 3, 8}));
  EXPECT_LT(difference(y, t.decoder(tgt, t.encoder(src), AttentionArguments{.is_causal = true})), 1e-6);
  EXPECT_TRUE(t.get_parameter("encoder.layers.1.linear2.bias").defined() &&
              t.get_parameter("decoder.norm.weight").defined());
  EXPECT_EQ(t.get_parameter("decoder.layers.0.multihead_attn.in_proj_weight").shape(), (Dims{24, 8}));
}

TEST(Attention, WithAndWithoutTheWeightsGivesTheSame) {
  MultiheadAttention layer(8, 2, {.batch_first = true});
  Tensor x = randn({2, 5, 8}), memory = randn({2, 7, 8});
  Tensor padding = gt(rand({2, 7}), 0.7), future = triu(ones({5, 5}, {.dtype = boolean}), 1);
  auto [y, weights] = layer.with_weights(x, memory, memory, {.key_padding_mask = padding});
  EXPECT_LT(difference(y, layer(x, memory, memory, {.key_padding_mask = padding})), 1e-5);
  EXPECT_LT(difference(sum(weights, Dims{-1}), ones({2, 5})), 1e-5);
  EXPECT_LT(difference(layer(x, x, x, {.is_causal = true}), layer(x, x, x, {.attn_mask = future})), 1e-5);
  EXPECT_EQ(layer.with_weights(x, x, x, {.average_weights = false}).second.shape(), (Dims{2, 2, 5, 5}));
  // One sample, and the length first.
  Tensor one = select(x, 0, 1);
  EXPECT_LT(difference(layer(one, one, one), select(layer(x, x, x), 0, 1)), 1e-5);
  MultiheadAttention turned(8, 2);
  turned.load_state_dict(layer.state_dict());
  Tensor t = x.transpose(0, 1);
  EXPECT_LT(difference(turned(t, t, t).transpose(0, 1), layer(x, x, x)), 1e-5);
  EXPECT_THROW(layer(x, one, one), Error);
}

// Heads and hidden units over the ranks, by the names of the parameters.
TEST(Attention, LayersDividedByHeadsEqualWhole) {
  auto heads = layout_by_patterns({{"*?_proj_weight", sbp::split(0)},
                                   {"linear1.*", sbp::split(0)},
                                   {"*out_proj.weight", sbp::split(1)},
                                   {"linear2.weight", sbp::split(1)},
                                   {"*", sbp::broadcast()}});
  std::vector<float> expected, gradient;
  auto run = [&](const LayoutByName& layout, int64_t ranks) {
    std::vector<int64_t> all;
    for (int64_t r = 0; r < ranks; ++r) all.push_back(r);
    Placement p("cpu", all);
    manual_seed(3);
    TransformerLayerOptions options{
        .dim_feedforward = 12, .dropout = 0, .batch_first = true, .packed = false, .placement = p, .layout = layout};
    TransformerEncoderLayer encoder(8, 4, options);
    TransformerDecoderLayer decoder(8, 4, options);
    Tensor x = randn({2, 5, 8}, {.placement = p, .sbp = sbp::broadcast()});
    Tensor y = decoder(x, encoder(x), {.is_causal = true});
    square(y).sum().backward();
    Tensor g = encoder.get_parameter("self_attn.q_proj_weight").grad();
    EXPECT_EQ(g.spec(), encoder.self_attn.q_proj_weight.spec());
    Tensor yf = y.full(), gf = g.full();
    auto yd = yf.data<float>(), gd = gf.data<float>();
    return std::pair(std::vector<float>(yd.begin(), yd.end()), std::vector<float>(gd.begin(), gd.end()));
  };
  comm::run_ranks(1, [&](int) { std::tie(expected, gradient) = run({}, 1); });
  comm::run_ranks(2, [&](int) {
    auto [y, g] = run(heads, 2);
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-4);
    for (size_t i = 0; i < g.size(); ++i) ASSERT_NEAR(g[i], gradient[i], 2e-3);
  });
}

}  // namespace
}  // namespace holon::nn
