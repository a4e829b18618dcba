// Recurrent layers.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "holon/nn/module.h"
#include "holon/ops.h"

namespace holon::nn {

struct RecurrentOptions {
  int64_t num_layers = 1;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0;  // between layers
  bool bidirectional = false;
  Placement placement{};
  NdSbp sbp{};  // of all weights; biases lie as their rows
  DType dtype = float32;
};

// What the recurrent layers share: the parameters weight_ih_l<k>, weight_hh_l<k>, bias_ih_l<k> and bias_hh_l<k> of layer k, with
// _reverse behind for the other direction, drawn within 1 / sqrt(hidden).
class Recurrent : public Module {
 protected:
  Recurrent(int64_t input_size, int64_t hidden_size, int64_t gates, const RecurrentOptions& options);
  // x, the states (zeros where they are undefined), then the weights, as the ops take them.
  std::vector<Tensor> arguments(const Tensor& x, std::vector<Tensor> states) const;
  RecurrentOptions options_;

 private:
  std::vector<Tensor> weights_;
  int64_t hidden_size_;
};

// Over x [l, n, input_size] ([n, l, ...] if batch_first; without n for one sample). Returns the last layer's states of all
// steps, and the last states of all layers [num_layers * directions, n, hidden_size].
class LSTM : public Recurrent {
 public:
  LSTM(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {});
  // {y, h, c}
  std::array<Tensor, 3> operator()(const Tensor& x, const Tensor& h0 = {}, const Tensor& c0 = {}) const;
};

class GRU : public Recurrent {
 public:
  GRU(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {});
  // {y, h}
  std::array<Tensor, 2> operator()(const Tensor& x, const Tensor& h0 = {}) const;
};

class RNN : public Recurrent {
 public:
  // nonlinearity: "tanh" or "relu".
  RNN(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {}, std::string_view nonlinearity = "tanh");
  // {y, h}
  std::array<Tensor, 2> operator()(const Tensor& x, const Tensor& h0 = {}) const;

 private:
  bool relu_;
};

}  // namespace holon::nn
