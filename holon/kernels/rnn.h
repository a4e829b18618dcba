// Recurrent layers over a whole sequence: one product of the hidden state and one pass over the gates for each step.
// All arrays of a call have one floating dtype; float16 and bfloat16 are computed in float32. T steps, B rows, H units.
#pragma once

#include "holon/array/array.h"

namespace holon::kernels {

enum class RnnMode { kTanh, kRelu, kLstm, kGru };

// Gates in the order of PyTorch: i, f, g, o (LSTM) and r, z, n (GRU); G of them (1 for the others).
int rnn_gates(RnnMode mode);
// What the backward pass needs of each step: 4 H numbers (LSTM: the gates; GRU: the gates and the hidden part of n), or
// none.
int rnn_saved(RnnMode mode);

// gx [T, B, G H]: the input's part of the gates, bias included. h0 [B, H], c0 [B, H] (LSTM); w [G H, H]; bias [G H] or
// undefined. y [T, B, H]: the hidden states; c [T, B, H] (LSTM; else not written): the cells; saved [T, B, rnn_saved
// H]. reverse: from the last step to the first.
void rnn_sequence(RnnMode mode, const Array& gx, const Array& h0, const Array& c0, const Array& w, const Array& bias,
                  bool reverse, Array& y, Array& c, Array& saved);

// dy and dc [T, B, H] may be undefined (zero). dgx: the gradient of gx; dgh: that of the hidden part of the gates,
// where it differs (GRU); dh0, dc0 (LSTM).
void rnn_sequence_backward(RnnMode mode, const Array& dy, const Array& dc, const Array& y, const Array& c,
                           const Array& saved, const Array& h0, const Array& c0, const Array& w, bool reverse,
                           Array& dgx, Array& dgh, Array& dh0, Array& dc0);

}  // namespace holon::kernels
