#include "holon/nn/rnn.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/ops/create.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/rnn.h"
#include "holon/ops/shape.h"
#include "holon/ops/unary.h"

namespace holon::nn {
namespace {

double difference(const Tensor& a, const Tensor& b) {
  NoGradGuard guard;
  Tensor x = a.full(), y = b.full();
  return x.shape() == y.shape() ? amax(abs(x - y)).item().as_double() : INFINITY;
}

TEST(Recurrent, StepsAreThoseOfTheCell) {
  LSTM lstm(3, 4);
  GRU gru(3, 4);
  RNN rnn(3, 4, {}, "relu");
  Tensor x = randn({5, 2, 3}), zero = zeros({2, 4}), h = zero, c = zero, g = zero, r = zero;
  auto part = [](const Module& m, const char* name) { return m.get_parameter(std::string(name) + "_l0"); };
  for (int t = 0; t < 5; ++t) {
    Tensor step = select(x, 0, t);
    auto next = lstm_cell(step, h, c, part(lstm, "weight_ih"), part(lstm, "weight_hh"), part(lstm, "bias_ih"),
                          part(lstm, "bias_hh"));
    h = next[0], c = next[1];
    g = gru_cell(step, g, part(gru, "weight_ih"), part(gru, "weight_hh"), part(gru, "bias_ih"), part(gru, "bias_hh"));
    r = rnn_relu_cell(step, r, part(rnn, "weight_ih"), part(rnn, "weight_hh"), part(rnn, "bias_ih"),
                      part(rnn, "bias_hh"));
  }
  auto [y, hn, cn] = lstm(x);
  EXPECT_LT(difference(select(y, 0, 4), h), 1e-5);
  EXPECT_LT(difference(select(hn, 0, 0), h), 1e-5);
  EXPECT_LT(difference(select(cn, 0, 0), c), 1e-5);
  EXPECT_LT(difference(select(gru(x)[0], 0, 4), g), 1e-5);
  EXPECT_LT(difference(select(rnn(x)[0], 0, 4), r), 1e-5);
}

TEST(Recurrent, LayersDirectionsAndNames) {
  LSTM lstm(3, 4, {.num_layers = 2, .batch_first = true, .bidirectional = true});
  EXPECT_EQ(lstm.named_parameters().size(), 16u);
  EXPECT_EQ(lstm.get_parameter("weight_ih_l1_reverse").shape(), (Dims{16, 8}));
  auto [y, h, c] = lstm(randn({2, 5, 3}));
  EXPECT_EQ(y.shape(), (Dims{2, 5, 8}));
  EXPECT_EQ(h.shape(), (Dims{4, 2, 4}));
  EXPECT_EQ(lstm(randn({5, 3}))[0].shape(), (Dims{5, 8}));
  EXPECT_EQ(GRU(3, 4, {.bias = false}).named_parameters().size(), 2u);
  EXPECT_THROW(RNN(3, 4, {}, "gelu"), Error);
  EXPECT_THROW(GRU(3, 0), Error);
  EXPECT_THROW(lstm(randn({3})), Error);
}

// A layer's parameters under a cell's names.
template <class C>
C cell_of(const Module& layer, C cell) {
  StateDict state;
  for (auto& [name, t] : layer.state_dict()) state.emplace_back(name.substr(0, name.size() - 3), t);
  cell.load_state_dict(state);
  return cell;
}

TEST(Cells, AreStepsOfTheLayers) {
  LSTM lstm(3, 4);
  GRU gru(3, 4);
  RNN rnn(3, 4, {}, "relu");
  LSTMCell lstm_step = cell_of(lstm, LSTMCell(3, 4));
  GRUCell gru_step = cell_of(gru, GRUCell(3, 4));
  RNNCell rnn_step = cell_of(rnn, RNNCell(3, 4, {}, "relu"));
  Tensor x = randn({5, 2, 3}), h, c, g, r;
  for (int t = 0; t < 5; ++t) {
    Tensor step = select(x, 0, t);
    auto next = lstm_step(step, h, c);
    h = next[0], c = next[1];
    g = gru_step(step, g);
    r = rnn_step(step, r);
  }
  auto [y, hn, cn] = lstm(x);
  EXPECT_LT(difference(select(hn, 0, 0), h), 1e-5);
  EXPECT_LT(difference(select(cn, 0, 0), c), 1e-5);
  EXPECT_LT(difference(select(gru(x)[0], 0, 4), g), 1e-5);
  EXPECT_LT(difference(select(rnn(x)[0], 0, 4), r), 1e-5);
  EXPECT_EQ(gru_step(randn({3})).shape(), (Dims{4}));
  EXPECT_EQ(GRUCell(3, 4, {.bias = false}).named_parameters().size(), 2u);
  EXPECT_THROW(RNNCell(3, 4, {}, "gelu"), Error);
  EXPECT_THROW(GRUCell(3, 0), Error);
  EXPECT_THROW(gru_step(randn({1, 2, 3})), Error);
}

TEST(Cells, RowsDividedEqualWhole) {
  comm::run_ranks(2, [](int) {
    Placement p = Placement::all("cpu");
    LSTMCell cell(3, 4, {.placement = p, .sbp = sbp::broadcast()});
    Tensor x = randn({3, 3}, {.placement = p, .sbp = sbp::split(0)});
    Tensor h = cell(x)[0];
    LSTMCell whole(3, 4);
    StateDict state;
    for (auto& [name, t] : cell.state_dict()) state.emplace_back(name, t.full());
    whole.load_state_dict(state);
    EXPECT_EQ(h.nd_sbp(), NdSbp(sbp::split(0)));
    EXPECT_LT(difference(h, whole(x.full())[0]), 1e-5);
  });
}

TEST(Recurrent, RowsDividedEqualWhole) {
  std::vector<float> expected;
  auto run = [](int64_t ranks) {
    std::vector<int64_t> all;
    for (int64_t r = 0; r < ranks; ++r) all.push_back(r);
    Placement p("cpu", all);
    manual_seed(3);
    GRU gru(3, 4, {.batch_first = true, .placement = p, .sbp = sbp::broadcast()});
    square(gru(randn({5, 6, 3}, {.placement = p, .sbp = sbp::split(0)}))[0]).sum().backward();
    Tensor g = gru.get_parameter("weight_hh_l0").grad().full();
    auto data = g.data<float>();
    return std::vector<float>(data.begin(), data.end());
  };
  comm::run_ranks(1, [&](int) { expected = run(1); });
  comm::run_ranks(2, [&](int) {
    auto found = run(2);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4);
  });
}

}  // namespace
}  // namespace holon::nn
