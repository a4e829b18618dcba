#include "holon/nn/rnn.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/nn/init.h"
#include "holon/nn/weights.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/packed.h"
#include "holon/ops/rnn.h"
#include "holon/ops/values.h"

namespace holon::nn {
namespace {

bool is_relu(std::string_view nonlinearity, const char* layer) {
  if (nonlinearity != "relu" && nonlinearity != "tanh")
    fail_value("{}: nonlinearity is '{}'; it must be 'tanh' or 'relu'.", layer, nonlinearity);
  return nonlinearity == "relu";
}

// Where x is, the same on all ranks.
Tensor zero_state(const Tensor& x, const Dims& shape) {
  if (x.is_local()) return zeros(shape, {.dtype = x.dtype(), .device = x.device()});
  return zeros(
      shape,
      {.placement = x.placement(), .sbp = NdSbp::filled(x.nd_sbp().size(), sbp::broadcast()), .dtype = x.dtype()});
}

// The results of the padded steps of x, packed as x is.
PackedSequence packed_like(const Tensor& y, const PackedSequence& x) {
  return {pack_padded_sequence(y, to_vector<int64_t>(lengths_of(x))).data, x.batch_sizes, x.sorted_indices,
          x.unsorted_indices};
}

Tensor in_given_order(const Tensor& state, const PackedSequence& x) {
  return x.unsorted_indices.defined() ? index_select(state, 1, x.unsorted_indices) : state;
}

}  // namespace

Recurrent::Recurrent(int64_t input_size, int64_t hidden_size, int64_t gates, const RecurrentOptions& o)
    : options_(o), hidden_size_(hidden_size) {
  if (hidden_size < 1 || o.num_layers < 1)
    fail_value("a recurrent layer: hidden_size is {}, num_layers {}; both must be at least 1.", hidden_size,
               o.num_layers);
  double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
  auto add = [&](const std::string& name, const Dims& shape, const NdSbp& sbp) {
    init::uniform_(register_parameter(name, blank(shape, o.placement, sbp, o.dtype)), -bound, bound);
    ++n_weights_;
  };
  int64_t ways = o.bidirectional ? 2 : 1, rows = gates * hidden_size;
  for (int64_t layer = 0; layer < o.num_layers; ++layer)
    for (int64_t way = 0; way < ways; ++way) {
      std::string suffix = fmt::format("_l{}{}", layer, way ? "_reverse" : "");
      add("weight_ih" + suffix, {rows, layer ? ways * hidden_size : input_size}, o.sbp);
      add("weight_hh" + suffix, {rows, hidden_size}, o.sbp);
      if (!o.bias) continue;
      add("bias_ih" + suffix, {rows}, beside(o.sbp));
      add("bias_hh" + suffix, {rows}, beside(o.sbp));
    }
}

std::vector<Tensor> Recurrent::arguments(const Tensor& x, std::vector<Tensor> states, bool batch_first) const {
  if (x.ndim() != 2 && x.ndim() != 3)
    fail_value("a recurrent layer: x must be [length, batch, width], or [length, width] for one sample; found {}.",
               x.shape());
  Dims shape{options_.num_layers * (options_.bidirectional ? 2 : 1)};
  if (x.ndim() == 3) shape.push_back(x.shape()[batch_first ? 0 : 1]);
  shape.push_back(hidden_size_);
  std::vector<Tensor> all{x};
  for (Tensor& state : states) {
    if (!state.defined()) state = zero_state(x, shape);
    all.push_back(state);
  }
  // As they are registered now: each may have been replaced.
  StateDict own = named_parameters(true);
  for (size_t i = 0; i < n_weights_; ++i) all.push_back(own[i].second);
  return all;
}

std::vector<Tensor> Recurrent::arguments(const PackedSequence& x, std::vector<Tensor> states) const {
  for (Tensor& state : states)
    if (state.defined() && x.sorted_indices.defined() && state.size(-2) == x.sorted_indices.numel())
      state = index_select(state, state.ndim() - 2, x.sorted_indices);
  return arguments(pad_packed_sequence(x.data, to_vector<int64_t>(x.batch_sizes)).padded, std::move(states), false);
}

LSTM::LSTM(int64_t input_size, int64_t hidden_size, const RecurrentOptions& o)
    : Recurrent(input_size, hidden_size, 4, o) {}
std::array<Tensor, 3> LSTM::operator()(const Tensor& x, const Tensor& h0, const Tensor& c0) const {
  auto& o = options_;
  return lstm(arguments(x, {h0, c0}, o.batch_first), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional,
              o.batch_first);
}
std::tuple<PackedSequence, Tensor, Tensor> LSTM::operator()(const PackedSequence& x, const Tensor& h0,
                                                            const Tensor& c0) const {
  auto& o = options_;
  auto [y, h, c] = lstm(arguments(x, {h0, c0}), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional, false,
                        to_vector<int64_t>(x.batch_sizes));
  return {packed_like(y, x), in_given_order(h, x), in_given_order(c, x)};
}

GRU::GRU(int64_t input_size, int64_t hidden_size, const RecurrentOptions& o)
    : Recurrent(input_size, hidden_size, 3, o) {}
std::array<Tensor, 2> GRU::operator()(const Tensor& x, const Tensor& h0) const {
  auto& o = options_;
  return gru(arguments(x, {h0}, o.batch_first), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional,
             o.batch_first);
}
std::pair<PackedSequence, Tensor> GRU::operator()(const PackedSequence& x, const Tensor& h0) const {
  auto& o = options_;
  auto [y, h] = gru(arguments(x, {h0}), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional, false,
                    to_vector<int64_t>(x.batch_sizes));
  return {packed_like(y, x), in_given_order(h, x)};
}

RNN::RNN(int64_t input_size, int64_t hidden_size, const RecurrentOptions& o, std::string_view nonlinearity)
    : Recurrent(input_size, hidden_size, 1, o), relu_(is_relu(nonlinearity, "RNN")) {}
std::array<Tensor, 2> RNN::operator()(const Tensor& x, const Tensor& h0) const {
  auto& o = options_;
  auto run = relu_ ? rnn_relu : rnn_tanh;
  return run(arguments(x, {h0}, o.batch_first), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional,
             o.batch_first, {});
}
std::pair<PackedSequence, Tensor> RNN::operator()(const PackedSequence& x, const Tensor& h0) const {
  auto& o = options_;
  auto run = relu_ ? rnn_relu : rnn_tanh;
  auto [y, h] = run(arguments(x, {h0}), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional, false,
                    to_vector<int64_t>(x.batch_sizes));
  return {packed_like(y, x), in_given_order(h, x)};
}

Cell::Cell(int64_t input_size, int64_t hidden_size, int64_t gates, const CellOptions& o) : hidden_size_(hidden_size) {
  if (hidden_size < 1) fail_value("a recurrent cell: hidden_size is {}; it must be at least 1.", hidden_size);
  double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
  auto make = [&](const char* name, const Dims& shape, const NdSbp& sbp) -> Parameter& {
    Parameter& t = register_parameter(name, blank(shape, o.placement, sbp, o.dtype));
    init::uniform_(t, -bound, bound);
    return t;
  };
  int64_t rows = gates * hidden_size;
  weight_ih = make("weight_ih", {rows, input_size}, o.sbp);
  weight_hh = make("weight_hh", {rows, hidden_size}, o.sbp);
  if (!o.bias) return;
  bias_ih = make("bias_ih", {rows}, beside(o.sbp));
  bias_hh = make("bias_hh", {rows}, beside(o.sbp));
}

Tensor Cell::state(const Tensor& x, const Tensor& given) const {
  if (x.ndim() != 1 && x.ndim() != 2)
    fail_value("a recurrent cell: x must be [batch, width], or [width] for one sample; found {}.", x.shape());
  if (given.defined()) return given;
  return zero_state(x, x.ndim() == 2 ? Dims{x.shape()[0], hidden_size_} : Dims{hidden_size_});
}

RNNCell::RNNCell(int64_t input_size, int64_t hidden_size, const CellOptions& o, std::string_view nonlinearity)
    : Cell(input_size, hidden_size, 1, o), relu_(is_relu(nonlinearity, "RNNCell")) {}
Tensor RNNCell::operator()(const Tensor& x, const Tensor& h) const {
  return (relu_ ? rnn_relu_cell : rnn_tanh_cell)(x, state(x, h), weight_ih, weight_hh, bias_ih, bias_hh);
}

Tensor GRUCell::operator()(const Tensor& x, const Tensor& h) const {
  return gru_cell(x, state(x, h), weight_ih, weight_hh, bias_ih, bias_hh);
}

std::array<Tensor, 2> LSTMCell::operator()(const Tensor& x, const Tensor& h, const Tensor& c) const {
  return lstm_cell(x, state(x, h), state(x, c), weight_ih, weight_hh, bias_ih, bias_hh);
}

}  // namespace holon::nn
