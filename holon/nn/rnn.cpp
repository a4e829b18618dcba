#include "holon/nn/rnn.h"

#include <cmath>

#include "holon/base/error.h"
#include "holon/nn/init.h"
#include "holon/nn/weights.h"

namespace holon::nn {

Recurrent::Recurrent(int64_t input_size, int64_t hidden_size, int64_t gates, const RecurrentOptions& o) : options_(o), hidden_size_(hidden_size) {
  if (hidden_size < 1 || o.num_layers < 1) fail_value("a recurrent layer: hidden_size is {}, num_layers {}; both count from 1.", hidden_size, o.num_layers);
  double bound = 1 / std::sqrt(static_cast<double>(hidden_size));
  auto add = [&](const std::string& name, const Dims& shape, const NdSbp& sbp) {
    weights_.push_back(register_parameter(name, blank(shape, o.placement, sbp, o.dtype)));
    init::uniform_(weights_.back(), -bound, bound);
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

std::vector<Tensor> Recurrent::arguments(const Tensor& x, std::vector<Tensor> states) const {
  if (x.ndim() != 2 && x.ndim() != 3) fail_value("a recurrent layer: x must be [length, batch, width], or [length, width] for one sample; found {}.", x.shape());
  Dims shape{options_.num_layers * (options_.bidirectional ? 2 : 1)};
  if (x.ndim() == 3) shape.push_back(x.shape()[options_.batch_first ? 0 : 1]);
  shape.push_back(hidden_size_);
  std::vector<Tensor> all{x};
  for (Tensor& state : states) {
    if (!state.defined() && x.is_global()) {
      std::vector<Sbp> whole(static_cast<size_t>(x.nd_sbp().size()), sbp::broadcast());
      state = zeros(shape, {.placement = x.placement(), .sbp = NdSbp(whole), .dtype = x.dtype()});
    } else if (!state.defined()) {
      state = zeros(shape, {.dtype = x.dtype(), .device = x.device()});
    }
    all.push_back(state);
  }
  all.insert(all.end(), weights_.begin(), weights_.end());
  return all;
}

LSTM::LSTM(int64_t input_size, int64_t hidden_size, const RecurrentOptions& o) : Recurrent(input_size, hidden_size, 4, o) {}
std::array<Tensor, 3> LSTM::operator()(const Tensor& x, const Tensor& h0, const Tensor& c0) const {
  auto& o = options_;
  return lstm(arguments(x, {h0, c0}), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional, o.batch_first);
}

GRU::GRU(int64_t input_size, int64_t hidden_size, const RecurrentOptions& o) : Recurrent(input_size, hidden_size, 3, o) {}
std::array<Tensor, 2> GRU::operator()(const Tensor& x, const Tensor& h0) const {
  auto& o = options_;
  return gru(arguments(x, {h0}), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional, o.batch_first);
}

RNN::RNN(int64_t input_size, int64_t hidden_size, const RecurrentOptions& o, std::string_view nonlinearity)
    : Recurrent(input_size, hidden_size, 1, o), relu_(nonlinearity == "relu") {
  if (!relu_ && nonlinearity != "tanh") fail_value("RNN: nonlinearity is '{}'; it must be 'tanh' or 'relu'.", nonlinearity);
}
std::array<Tensor, 2> RNN::operator()(const Tensor& x, const Tensor& h0) const {
  auto& o = options_;
  auto run = relu_ ? rnn_relu : rnn_tanh;
  return run(arguments(x, {h0}), o.bias, o.num_layers, o.dropout, is_training(), o.bidirectional, o.batch_first);
}

}  // namespace holon::nn
