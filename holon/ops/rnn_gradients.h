// Gradients of recurrent layers as ops, step by step, which have gradients themselves: what backward() computes while
// it is recorded (create_graph), or where the gates have a gradient, in place of the kernel.
#pragma once

#include <string_view>

#include "holon/tensor/tensor.h"

namespace holon::ops {

struct RnnSteps {
  std::string_view mode;  // "tanh", "relu", "lstm" or "gru"
  bool reverse = false;
  Tensor y, c, saved, h0, c0, w_hh;  // of rnn_sequence: its outputs, and inputs; c and c0 of an LSTM
};

struct RnnGradients {
  Tensor dgates, dhidden, dh0, dc0;  // dhidden: of the hidden part of the gates, where it differs from dgates (GRU)
};

// dy, dc, dsaved: gradients of the outputs, undefined where there is none.
RnnGradients rnn_gradients(const RnnSteps& of, const Tensor& dy, const Tensor& dc, const Tensor& dsaved);

}  // namespace holon::ops
