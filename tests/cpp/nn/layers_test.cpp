#include "holon/nn/layers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/nn/init.h"
#include "holon/ops/activation.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/class_loss.h"
#include "holon/ops/compare.h"
#include "holon/ops/conv.h"
#include "holon/ops/create.h"
#include "holon/ops/linalg.h"
#include "holon/ops/loss.h"
#include "holon/ops/norm.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/unary.h"

namespace holon::nn {
namespace {

using sbp::broadcast;
using sbp::split;

double difference(const Tensor& a, const Tensor& b) {
  NoGradGuard guard;
  Tensor x = a.full(), y = b.full();
  return x.shape() == y.shape() ? amax(abs(x - y)).item().as_double() : INFINITY;
}
double largest(const Tensor& t) {
  NoGradGuard guard;
  return amax(abs(t)).item().as_double();
}
double mean_of(const Tensor& t) {
  NoGradGuard guard;
  return mean(t).item().as_double();
}
double deviation(const Tensor& t) {
  NoGradGuard guard;
  return std::sqrt(mean(t * t).item().as_double());
}

TEST(Layers, StartWithinTheBoundsOfTheirFanIn) {
  Linear fc(100, 400);
  EXPECT_LE(largest(fc.weight), 0.1);
  EXPECT_GT(largest(fc.weight), 0.0999);
  EXPECT_LE(largest(fc.bias), 0.1);
  EXPECT_GT(largest(fc.bias), 0.09);
  EXPECT_NEAR(mean_of(fc.weight), 0, 2e-3);
  Conv2d conv(4, 64, {5}, {.groups = 2});
  EXPECT_EQ(conv.weight.shape(), (Dims{64, 2, 5, 5}));
  EXPECT_LE(largest(conv.weight), 1 / std::sqrt(50.0) + 1e-6);
  Embedding table(200, 100);
  EXPECT_NEAR(deviation(table.weight), 1, 0.02);
  LayerNorm norm({6});
  EXPECT_EQ(difference(norm.weight, ones({6})), 0);
  EXPECT_EQ(difference(norm.bias, zeros({6})), 0);
}

TEST(Init, DrawsWhatItsNameSays) {
  Tensor t = zeros({300, 200});
  init::kaiming_uniform_(t);
  EXPECT_NEAR(largest(t), std::sqrt(6.0 / 200), 1e-4);
  init::kaiming_normal_(t);
  EXPECT_NEAR(deviation(t), std::sqrt(2.0 / 200), 1e-3);
  init::xavier_uniform_(t);
  EXPECT_NEAR(largest(t), std::sqrt(6.0 / 500), 1e-4);
  init::xavier_normal_(t, 2);
  EXPECT_NEAR(deviation(t), 2 * std::sqrt(2.0 / 500), 1e-3);
  init::trunc_normal_(t, 0, 0.1, -0.15, 0.15);
  EXPECT_LE(largest(t), 0.15 + 1e-6);
  EXPECT_GT(deviation(t), 0.06);
  init::constant_(t, 0.5);
  EXPECT_EQ(difference(t, full({300, 200}, 0.5)), 0);
  EXPECT_THROW(init::kaiming_uniform_(zeros({3})), Error);
}

// The values of a parameter depend on the seed alone, not on where and how it lies.
TEST(Layers, StartAlikeUnderEveryLayout) {
  auto start = [](const Placement& p, const NdSbp& sbp) {
    manual_seed(4);
    return Linear(5, 7, {.placement = p, .sbp = sbp});
  };
  std::vector<float> weight, bias;
  comm::run_ranks(1, [&](int) {
    Linear one = start(Placement("cpu", {0}), broadcast());
    auto w = one.weight.data<float>(), b = one.bias.data<float>();
    weight.assign(w.begin(), w.end());
    bias.assign(b.begin(), b.end());
  });
  comm::run_ranks(4, [&](int) {
    Placement line("cpu", {0, 1, 2, 3}), grid("cpu", Dims{2, 2}, {0, 1, 2, 3}), some("cpu", {3, 1});
    for (auto& [p, sbp] : std::vector<std::pair<Placement, NdSbp>>{{line, broadcast()},
                                                                   {line, split(0)},
                                                                   {line, split(1)},
                                                                   {grid, {split(0), split(1)}},
                                                                   {grid, {split(0), split(0)}},
                                                                   {some, split(0)}}) {
      Linear layer = start(p, sbp);
      EXPECT_EQ(layer.weight.nd_sbp(), sbp);
      Tensor w = layer.weight.full(), b = layer.bias.full();
      auto wd = w.data<float>(), bd = b.data<float>();
      EXPECT_EQ(std::vector<float>(wd.begin(), wd.end()), weight) << sbp.str();
      EXPECT_EQ(std::vector<float>(bd.begin(), bd.end()), bias) << sbp.str();
    }
  });
}

TEST(Layers, BiasLiesAsTheOutputs) {
  comm::run_ranks(2, [](int) {
    Placement p("cpu", {0, 1});
    EXPECT_EQ(Linear(4, 6, {.placement = p, .sbp = split(0)}).bias.nd_sbp(), NdSbp(split(0)));
    EXPECT_EQ(Linear(4, 6, {.placement = p, .sbp = split(1)}).bias.nd_sbp(), NdSbp(broadcast()));
    EXPECT_EQ(Linear(4, 6, {.placement = p, .sbp = split(0), .bias_sbp = broadcast()}).bias.nd_sbp(),
              NdSbp(broadcast()));
  });
}

// A two-layer network, columns then rows over the ranks, has the values of one whole rank, bias included.
TEST(Layers, ColumnThenRowParallelEqualsWhole) {
  comm::run_ranks(2, [](int) {
    Placement p("cpu", {0, 1});
    auto run = [&](NdSbp first, NdSbp second) {
      manual_seed(9);
      Linear up(5, 7, {.placement = p, .sbp = first}), down(7, 3, {.placement = p, .sbp = second});
      return down(gelu(up(randn({4, 5}, {.placement = p, .sbp = broadcast()}))));
    };
    EXPECT_LT(difference(run(split(0), split(1)), run(broadcast(), broadcast())), 1e-5);
  });
}

TEST(Layers, DropoutAsksForTheMode) {
  Dropout dropout(0.5);
  Tensor x = ones({1000});
  Tensor y = dropout(x);
  EXPECT_NEAR(y.mean().item().as_double(), 1, 0.2);
  EXPECT_EQ(largest(y), 2);
  Sequential net(dropout, ReLU());
  net.eval();
  EXPECT_EQ(difference(net(x), x), 0);
  EXPECT_EQ(difference(dropout(x), x), 0);
  EXPECT_THROW(Dropout(1.5), Error);
}

TEST(Layers, ConvolutionNetworkRunsAndLearnsShapes) {
  Sequential net(Conv2d(1, 4, {3}, {.padding = {1}}), ReLU(), MaxPool2d(2), Flatten(), Linear(4 * 4 * 4, 10));
  Tensor y = net(randn({2, 1, 8, 8}));
  EXPECT_EQ(y.shape(), (Dims{2, 10}));
  CrossEntropyLoss loss;
  loss(y, zeros({2}, {.dtype = int64})).backward();
  for (auto& p : net.parameters()) EXPECT_TRUE(p.grad().defined() && largest(p.grad()) > 0);
  EXPECT_THROW(Conv2d(3, 4, {3}, {.groups = 2}), Error);
  EXPECT_THROW(Conv2d(3, 4, {3, 3, 3}), Error);
}

TEST(Layers, ModulesInBracesDrawInTheirOrder) {
  manual_seed(3);
  Sequential net{Linear(2, 3), ReLU(), Linear(3, 1)};
  manual_seed(3);
  Linear first(2, 3), second(3, 1);
  EXPECT_EQ(difference(net.get_parameter("0.weight"), first.weight), 0);
  EXPECT_EQ(difference(net.get_parameter("2.weight"), second.weight), 0);
}

TEST(Layers, ListsNameTheirModules) {
  ModuleList<Linear> list;
  list.push_back(Linear(2, 2));
  list.push_back(Linear(2, 2, {.bias = false}));
  auto parameters = list.named_parameters();
  ASSERT_EQ(parameters.size(), 3u);
  EXPECT_EQ(parameters[2].first, "1.weight");
  EXPECT_TRUE(parameters[2].second.is_same(list[1].weight));
  Sequential outer(Sequential(Linear(2, 3), ReLU()), Linear(3, 1));
  EXPECT_EQ(outer.named_parameters()[2].first, "1.weight");
  EXPECT_EQ(outer.named_parameters()[0].first, "0.0.weight");
  EXPECT_EQ(outer(ones({4, 2})).shape(), (Dims{4, 1}));
}

TEST(Layers, ContainersByPlaceAndName) {
  Sequential net;
  net.push_back("up", Linear(2, 3));
  net.push_back("act", ReLU());
  EXPECT_EQ(net.named_parameters()[0].first, "up.weight");
  EXPECT_TRUE(net[0].get_parameter("weight").is_same(net.get_parameter("up.weight")));
  EXPECT_THROW(net[2], Error);
  ModuleDict<Linear> dict{{"a", Linear(2, 2)}, {"b", Linear(2, 3)}};
  EXPECT_TRUE(dict.contains("b") && !dict.contains("c"));
  EXPECT_EQ(dict["b"](ones({1, 2})).shape(), (Dims{1, 3}));
  EXPECT_EQ(dict.named_parameters()[2].first, "b.weight");
  EXPECT_THROW(dict["c"], Error);
  EXPECT_THROW(dict.insert("a", Linear(1, 1)), Error);
  ModuleList<Linear> list({Linear(2, 2), Linear(2, 2)});
  EXPECT_EQ(list.back().weight.shape(), (Dims{2, 2}));
  EXPECT_THROW(list.at(2), Error);
}

TEST(Layers, ConvolutionsAndPoolsOfAnyNumberOfAxes) {
  for (int n = 1; n <= 3; ++n) {
    Dims shape{2, 4};
    for (int a = 0; a < n; ++a) shape.push_back(6 + 2 * a);
    Tensor x = randn(shape);
    auto check = [&](auto convolution, auto back, auto pool, auto mean_pool, auto adaptive, auto adaptive_max) {
      Tensor y = convolution(x);
      EXPECT_EQ(y.shape()[1], 6);
      EXPECT_EQ(back(y).shape(), shape);
      EXPECT_EQ(pool(x).shape(), mean_pool(x).shape());
      EXPECT_LT(difference(adaptive(x), mean_pool(x)), 1e-6);
      EXPECT_LT(difference(adaptive_max(x), pool(x)), 1e-6);
    };
    Dims half;
    for (int a = 0; a < n; ++a) half.push_back(shape[2 + a] / 2);
    ConvOptions down{.stride = {2}, .padding = {1}, .groups = 2},
        up{.stride = {2}, .padding = {1}, .output_padding = {1}};
    if (n == 1)
      check(Conv1d(4, 6, {3}, down), ConvTranspose1d(6, 4, {3}, up), MaxPool1d(2), AvgPool1d(2),
            AdaptiveAvgPool1d(half), AdaptiveMaxPool1d(half));
    if (n == 2)
      check(Conv2d(4, 6, {3}, down), ConvTranspose2d(6, 4, {3}, up), MaxPool2d(2), AvgPool2d(2),
            AdaptiveAvgPool2d(half), AdaptiveMaxPool2d(half));
    if (n == 3)
      check(Conv3d(4, 6, {3}, down), ConvTranspose3d(6, 4, {3}, up), MaxPool3d(2), AvgPool3d(2),
            AdaptiveAvgPool3d(half), AdaptiveMaxPool3d(half));
  }
  Conv2d plain(1, 1, {3}), wrapped(1, 1, {3}, {.padding = {1}, .padding_mode = "circular"});
  wrapped.load_state_dict(plain.state_dict());
  Tensor x = randn({1, 1, 5, 5});
  EXPECT_LT(difference(wrapped(x), plain(Pad({1, 1, 1, 1}, "circular")(x))), 1e-6);
  EXPECT_THROW(Conv2d(1, 1, {3}, {.padding_mode = "mirror"}), Error);
  EXPECT_THROW(AvgPool1d(2, {.divisor_override = 3}), Error);
  EXPECT_EQ(PixelUnshuffle(2)(PixelShuffle(2)(ones({1, 4, 3, 3}))).shape(), (Dims{1, 4, 3, 3}));
  EXPECT_EQ(Upsample({.scale_factor = 2, .mode = "bilinear"})(ones({1, 1, 3, 4})).shape(), (Dims{1, 1, 6, 8}));
  EXPECT_EQ(difference(Pad({1, 0}, "constant", 3.0)(zeros({1, 1, 2})).sum(), full({}, 3.0)), 0);
}

TEST(Layers, ActivationsAreTheirOps) {
  Tensor x = randn({3, 4});
  auto check = [&](const auto& layer, const Tensor& expected) { EXPECT_LT(difference(layer(x), expected), 1e-6); };
  check(ReLU(), relu(x));
  check(ReLU6(), relu6(x));
  check(SELU(), selu(x));
  check(QuickGELU(), quick_gelu(x));
  check(SiLU(), x * sigmoid(x));
  check(Mish(), mish(x));
  check(Sigmoid(), sigmoid(x));
  check(LogSigmoid(), log(sigmoid(x)));
  check(Tanh(), tanh(x));
  check(Softsign(), softsign(x));
  check(Tanhshrink(), x - tanh(x));
  check(Hardswish(), hardswish(x));
  check(Hardsigmoid(), hardsigmoid(x));
  check(LeakyReLU(0.3), where(gt(x, 0.0), x, x * 0.3));
  check(ELU(0.5), elu(x, 0.5));
  check(CELU(0.5), celu(x, 0.5));
  check(GELU({.approximate = "tanh"}), gelu(x, {.approximate = "tanh"}));
  check(Softplus(2), softplus(x, 2));
  check(Softshrink(0.2), softshrink(x, 0.2));
  check(Hardshrink(0.2), hardshrink(x, 0.2));
  check(Threshold(0.1, 9), where(gt(x, 0.1), x, full({3, 4}, 9.0)));
  check(Hardtanh(-0.5, 0.25), hardtanh(x, -0.5, 0.25));
  check(GLU(), glu(x, -1));
  check(Softmax(0), softmax(x, 0));
  check(LogSoftmax(), log(softmax(x, -1)));
  check(PReLU(4), leaky_relu(x, 0.25));
  EXPECT_EQ(PReLU(4, {.init = 0.5}).named_parameters()[0].first, "weight");
}

TEST(Layers, LossesAreTheirOps) {
  Tensor x = randn({5, 3}), y = rand({5, 3}), weight = arange(1, 4).to(float32), sign = ones({5});
  Tensor target = floor_divide(arange(5), int64_t{2});
  auto same = [&](const Tensor& a, const Tensor& b) { EXPECT_LT(difference(a, b), 1e-6); };
  same(L1Loss("sum")(x, y), abs(x - y).sum());
  same(MSELoss()(x, y), square(x - y).mean());
  same(SmoothL1Loss({.beta = 0.5})(x, y), smooth_l1_loss(x, y, {.beta = 0.5}));
  same(HuberLoss({.delta = 0.5})(x, y), huber_loss(x, y, {.delta = 0.5}));
  same(CrossEntropyLoss({.label_smoothing = 0.1}, weight)(x, target),
       cross_entropy(x, target, weight, {.label_smoothing = 0.1}));
  same(NLLLoss()(log_softmax(x, -1), target), CrossEntropyLoss()(x, target));
  same(KLDivLoss({.reduction = "sum"})(x, y), kl_div(x, y, {.reduction = "sum"}));
  same(BCELoss()(sigmoid(x), y), BCEWithLogitsLoss()(x, y));
  same(BCEWithLogitsLoss("none", {}, weight)(x, y),
       binary_cross_entropy_with_logits(x, y, {}, weight, {.reduction = "none"}));
  same(SoftMarginLoss()(x, ones({5, 3})), log1p(exp(-x)).mean());
  same(HingeEmbeddingLoss()(x, ones({5, 3})), x.mean());
  same(MarginRankingLoss({.margin = 0.5})(x, y, ones({5, 3})), relu(y - x + Scalar(0.5)).mean());
  same(CosineEmbeddingLoss()(x, x, sign), zeros({}));
  same(TripletMarginLoss({.margin = 0.5})(x, x, x), full({}, 0.5));
  EXPECT_EQ(BCELoss("mean", weight).state_dict()[0].first, "weight");
}

TEST(Layers, ProductsDistancesAndWindows) {
  Bilinear both(3, 4, 2);
  EXPECT_EQ(both(ones({5, 3}), ones({5, 4})).shape(), (Dims{5, 2}));
  EXPECT_LE(largest(both.weight), 1 / std::sqrt(3.0) + 1e-6);
  Tensor x = randn({5, 3}), y = randn({5, 3});
  EXPECT_LT(difference(CosineSimilarity()(x, x), ones({5})), 1e-5);
  EXPECT_LT(difference(PairwiseDistance(1, 0)(x, y), sum(abs(x - y), Dims{1})), 1e-5);
  Tensor image = randn({1, 2, 4, 4});
  EXPECT_EQ(difference(Fold({4, 4}, {2, 2}, {.stride = {2, 2}})(Unfold({2, 2}, {.stride = {2, 2}})(image)), image), 0);
  EXPECT_LT(difference(LocalResponseNorm(1, {.alpha = 1, .beta = 1})(image), image / (square(image) + Scalar(1.0))),
            1e-5);
}

TEST(Layers, ChannelDropoutZeroesWholeChannels) {
  Tensor y = Dropout2d(0.5)(ones({8, 8, 3, 3}));
  EXPECT_EQ(difference(y, expand(slice(slice(y, 2, 0, 1), 3, 0, 1), {8, 8, 3, 3})), 0);
  EXPECT_EQ(Dropout1d(0.5)(ones({2, 3, 4})).shape(), (Dims{2, 3, 4}));
  EXPECT_EQ(Dropout3d(0.0)(ones({2, 3, 1, 1, 4})).shape(), (Dims{2, 3, 1, 1, 4}));
  EXPECT_THROW(Dropout2d(-1), Error);
}

TEST(Layers, UnflattenCutsAnAxis) {
  EXPECT_EQ(Unflatten(-1, {2, 3})(ones({4, 6})).shape(), (Dims{4, 2, 3}));
  EXPECT_EQ(Unflatten(0, {2, 2})(ones({4, 6})).shape(), (Dims{2, 2, 6}));
  EXPECT_THROW(Unflatten(1, {4, 2})(ones({4, 6})), Error);
  EXPECT_THROW(Unflatten(2, {2, 3})(ones({4, 6})), Error);
}

TEST(Layers, PaddingRowsStayZero) {
  Embedding table(5, 3, {.padding_idx = -1});
  EXPECT_EQ(largest(slice(table.weight.detach(), 0, 4, 5)), 0);
  table(arange(5)).sum().backward();
  EXPECT_EQ(largest(slice(table.weight.grad(), 0, 4, 5)), 0);
  EXPECT_EQ(largest(slice(table.weight.grad(), 0, 0, 1)), 1);
  EXPECT_THROW(Embedding(5, 3, {.padding_idx = 5}), Error);
}

TEST(Layers, EmbeddingGivesRows) {
  Embedding table(5, 3);
  Tensor rows = table(arange(5));
  EXPECT_EQ(difference(rows, table.weight), 0);
}

}  // namespace
}  // namespace holon::nn
