// Recurrent layers.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "holon/nn/module.h"
#include "holon/nn/packed.h"

namespace holon::nn {

struct RecurrentOptions {
  int64_t num_layers = 1;
  bool bias = true;
  bool batch_first = false;
  double dropout = 0;  // between layers
  bool bidirectional = false;
  Placement placement{};
  NdSbp sbp{};  // of all weights; biases are distributed as their rows
  DType dtype = float32;
};

// What the recurrent layers share: the parameters weight_ih_l<k>, weight_hh_l<k>, bias_ih_l<k> and bias_hh_l<k> of
// layer k, with _reverse behind for the other direction, drawn within 1 / sqrt(hidden).
class Recurrent : public Layer<Recurrent> {
 protected:
  Recurrent(int64_t input_size, int64_t hidden_size, int64_t gates, const RecurrentOptions& options);
  // x, the states (zeros where they are undefined), then the weights, as the ops take them.
  std::vector<Tensor> arguments(const Tensor& x, std::vector<Tensor> states, bool batch_first) const;
  // The same of packed sequences, which are padded for it: [l, n, input_size].
  std::vector<Tensor> arguments(const PackedSequence& x, std::vector<Tensor> states) const;
  RecurrentOptions options_;

 private:
  int64_t hidden_size_;
  size_t n_weights_ = 0;
};

// Over x [l, n, input_size] ([n, l, ...] if batch_first; without n for one sample). Returns the last layer's states of
// all steps, and the last states of all layers [num_layers * directions, n, hidden_size].
class LSTM : public Recurrent {
 public:
  LSTM(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {});
  // {y, h, c}
  std::array<Tensor, 3> operator()(const Tensor& x, const Tensor& h0 = {}, const Tensor& c0 = {}) const;
  // Of sequences of unlike lengths: the last states are those at each sequence's end, in the batch's own order.
  std::tuple<PackedSequence, Tensor, Tensor> operator()(const PackedSequence& x, const Tensor& h0 = {},
                                                        const Tensor& c0 = {}) const;
};

class GRU : public Recurrent {
 public:
  GRU(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {});
  // {y, h}
  std::array<Tensor, 2> operator()(const Tensor& x, const Tensor& h0 = {}) const;
  std::pair<PackedSequence, Tensor> operator()(const PackedSequence& x, const Tensor& h0 = {}) const;
};

class RNN : public Recurrent {
 public:
  // nonlinearity: "tanh" or "relu".
  RNN(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {},
      std::string_view nonlinearity = "tanh");
  // {y, h}
  std::array<Tensor, 2> operator()(const Tensor& x, const Tensor& h0 = {}) const;
  std::pair<PackedSequence, Tensor> operator()(const PackedSequence& x, const Tensor& h0 = {}) const;

 private:
  bool relu_;
};

struct CellOptions {
  bool bias = true;
  Placement placement{};
  NdSbp sbp{};  // of both weights; biases are distributed as their rows
  DType dtype = float32;
};

// One step over x [n, input_size] ([input_size] for one sample), with states [n, hidden_size], which are zeros where
// undefined. The parameters weight_ih, weight_hh, bias_ih and bias_hh are drawn within 1 / sqrt(hidden_size).
class Cell : public Layer<Cell> {
 public:
  Parameter weight_ih, weight_hh, bias_ih, bias_hh;  // biases: undefined without them

 protected:
  Cell(int64_t input_size, int64_t hidden_size, int64_t gates, const CellOptions& options);
  // Errors: x has other axes.
  Tensor state(const Tensor& x, const Tensor& given) const;

 private:
  int64_t hidden_size_;
};

// tanh, or relu, of x weight_ih^T + bias_ih + h weight_hh^T + bias_hh.
class RNNCell : public Cell {
 public:
  RNNCell(int64_t input_size, int64_t hidden_size, const CellOptions& options = {},
          std::string_view nonlinearity = "tanh");
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const;

 private:
  bool relu_;
};

class GRUCell : public Cell {
 public:
  GRUCell(int64_t input_size, int64_t hidden_size, const CellOptions& options = {})
      : Cell(input_size, hidden_size, 3, options) {}
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const;
};

class LSTMCell : public Cell {
 public:
  LSTMCell(int64_t input_size, int64_t hidden_size, const CellOptions& options = {})
      : Cell(input_size, hidden_size, 4, options) {}
  // {h, c}
  std::array<Tensor, 2> operator()(const Tensor& x, const Tensor& h = {}, const Tensor& c = {}) const;
};

}  // namespace holon::nn
