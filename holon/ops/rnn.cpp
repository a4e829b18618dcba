// Recurrent layers. The input's part of all steps is one product; the steps then run in one op, which keeps the gates
// for its gradient, and the gradients of the weights are products over all steps at once. The batch splits; steps and
// units are whole.
#include "holon/kernels/rnn.h"
#include "holon/internal_ops/matmul.h"
#include "holon/internal_ops/rnn.h"
#include "holon/ops/activation.h"
#include "holon/ops/create.h"

#include "holon/base/index.h"
#include "holon/dispatch/autocast.h"
#include "holon/kernels/copy.h"
#include "holon/ops/elementwise.h"
#include "holon/ops/flops.h"
#include "holon/ops/index.h"
#include "holon/ops/matmul.h"
#include "holon/ops/random.h"
#include "holon/ops/reduce.h"
#include "holon/ops/rnn.h"
#include "holon/ops/rnn_gradients.h"
#include "holon/ops/rules.h"
#include "holon/ops/shape.h"
#include "holon/ops/whole.h"

namespace holon::ops {
namespace {

using kernels::RnnMode;

RnnMode mode_of(std::string_view text) {
  return text == "lstm" ? RnnMode::kLstm
      : text == "gru"   ? RnnMode::kGru
      : text == "relu"  ? RnnMode::kRelu
                        : RnnMode::kTanh;
}

// The hidden states before each step.
Tensor states_before(const Tensor& y, const Tensor& h0, bool reverse) {
  int64_t steps = y.shape()[0];
  Tensor first = unsqueeze(h0, 0);
  if (steps == 1) return first;
  return reverse ? cat({slice(y, 0, 1, steps), first}, 0) : cat({first, slice(y, 0, 0, steps - 1)}, 0);
}

void require_shape(const char* op, const char* what, const Tensor& t, const Dims& shape, DType dtype) {
  if (!t.defined()) fail_type("{}: {} is missing.", op, what);
  if (t.shape() != shape) fail_value("{}: {} has shape {}, it must be {}.", op, what, t.shape(), shape);
  if (t.dtype() != dtype)
    fail_type("{}: {} is {}, the input {}. Convert one of them by to().", op, what, name(t.dtype()), name(dtype));
}

// The parameters of one direction of one layer.
struct Weights {
  Tensor w_ih, w_hh, b_ih, b_hh;
};

// In an autocast region a layer before may give another dtype than the weights have.
Tensor as_weights(const Tensor& t, const Tensor& weight) {
  const bool other = autocast_mode().enabled && t.defined() && weight.defined() && t.dtype() != weight.dtype();
  return other && is_floating(t.dtype()) ? t.to(weight.dtype()) : t;
}

// Where sequences of a batch end: the index of each last step, [1, B, 1], and for the other direction which step comes
// instead of which, [T, B, 1], the steps of a sequence in reverse and those beyond its end as they are.
struct Ends {
  Tensor last, reversed;
};

// By how many sequences have each step. Errors: sizes that rise, that are not the batch's or more than its steps.
Ends ends_of(const char* op, const Tensor& x, std::span<const int64_t> sizes) {
  const int64_t steps = x.shape()[0], batch = x.shape()[1];
  bool fits = !sizes.empty() && static_cast<int64_t>(sizes.size()) <= steps && sizes[0] == batch;
  for (size_t t = 0; fits && t < sizes.size(); ++t) fits = sizes[t] >= 1 && (t == 0 || sizes[t] <= sizes[t - 1]);
  if (!fits)
    fail_value(
        "{}: {} batch_sizes, the first {}, do not fit the input {}: there is at most one for each step, the first "
        "is the batch, and they fall to at least 1. Pass those of pack_padded_sequence.",
        op, sizes.size(), sizes.empty() ? 0 : sizes[0], x.shape());
  Array last = Array::empty({1, batch, 1}, int64), reversed = Array::empty({steps, batch, 1}, int64);
  for (int64_t b = 0; b < batch; ++b) {
    int64_t length = 0;
    while (to_size(length) < sizes.size() && sizes[to_size(length)] > b) ++length;
    last.data<int64_t>()[b] = length - 1;
    for (int64_t t = 0; t < steps; ++t) reversed.data<int64_t>()[t * batch + b] = t < length ? length - 1 - t : t;
  }
  return {beside(x, last), beside(x, reversed)};
}

// The steps of x [T, B, I] that index [t, B, 1] names.
Tensor steps_at(const Tensor& x, const Tensor& index) {
  return gather(x, 0, expand(index, {index.shape()[0], x.shape()[1], x.shape()[2]}));
}

// One direction of one layer over x [T, B, I]: {y, h_n, c_n}. ends: of sequences that end before the last step.
std::array<Tensor, 3> run(const char* op, const Tensor& x, const Tensor& h0, const Tensor& c0, const Weights& w,
                          std::string_view mode, bool reverse, const Ends& ends = {}) {
  int64_t hidden = h0.size(-1), width = hidden * kernels::rnn_gates(mode_of(mode));
  require_shape(op, "weight_ih", w.w_ih, {width, x.shape()[2]}, x.dtype());
  require_shape(op, "weight_hh", w.w_hh, {width, hidden}, x.dtype());
  if (w.b_ih.defined()) require_shape(op, "bias_ih", w.b_ih, {width}, x.dtype());
  if (w.b_hh.defined()) require_shape(op, "bias_hh", w.b_hh, {width}, x.dtype());
  if (ends.last.defined()) {
    // The other direction begins at each sequence's own end: it goes forward over the steps in reverse.
    Tensor gates = linear(reverse ? steps_at(x, ends.reversed) : x, w.w_ih, w.b_ih);
    auto out = rnn_sequence(gates, h0, c0, w.w_hh, w.b_hh, mode, false);
    auto at_end = [&](const Tensor& t) { return squeeze(steps_at(t, ends.last), Dims{0}); };
    return {reverse ? steps_at(out[0], ends.reversed) : out[0], at_end(out[0]),
            mode == "lstm" ? at_end(out[1]) : Tensor()};
  }
  auto out = rnn_sequence(linear(x, w.w_ih, w.b_ih), h0, c0, w.w_hh, w.b_hh, mode, reverse);
  int64_t last = reverse ? 0 : x.shape()[0] - 1;
  return {out[0], select(out[0], 0, last), mode == "lstm" ? select(out[1], 0, last) : Tensor()};
}

// tensors: x, h0, (c0 of an LSTM,) then for each layer and direction w_ih, w_hh (, b_ih, b_hh).
void layers_body(BodyCall& c, std::string_view mode) {
  const char* op = c.op().name();
  bool lstm = mode == "lstm", biases = c.b("has_biases"_attr), batch_first = c.b("batch_first"_attr);
  int64_t layers = c.i("num_layers"_attr), ways = c.b("bidirectional"_attr) ? 2 : 1;
  size_t first = lstm ? 3 : 2, each = biases ? 4 : 2;
  double p = c.f("dropout"_attr);
  if (layers < 1 || layers > (1 << 20))
    fail_value("{}: num_layers is {}; it must be at least 1 and match the number of weights.", op, layers);
  if (!(p >= 0 && p <= 1)) fail_value("{}: dropout is {}; a probability must be from 0 to 1.", op, p);
  size_t wanted = first + each * to_size(layers * ways);
  if (c.n_in() != wanted)
    fail_value("{}: {} tensors were passed, it takes {}: input, h0, {}then weight_ih, weight_hh{} for each of {} "
               "layers in {} direction(s).",
               op, c.n_in(), wanted, lstm ? "c0, " : "", biases ? ", bias_ih, bias_hh" : "", layers, ways);
  const Tensor& weight = c.in(first);
  Tensor x = as_weights(c.in(0), weight), h0 = as_weights(c.in(1), weight),
         c0 = lstm ? as_weights(c.in(2), weight) : Tensor();
  if (x.ndim() != 3 && x.ndim() != 2)
    fail_value("{}: the input is {}; it takes [steps, batch, size] (or [batch, steps, size] if batch_first), or "
               "[steps, size].",
               op, x.shape());
  if (!is_floating(x.dtype()))
    fail_type("{}: the input is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).", op,
              name(x.dtype()));
  bool batched = x.ndim() == 3;
  if (!batched) {
    x = unsqueeze(x, 1);
    if (h0.ndim() == 2) h0 = unsqueeze(h0, 1);
    if (lstm && c0.ndim() == 2) c0 = unsqueeze(c0, 1);
  } else if (batch_first) {
    x = transpose(x, 0, 1);
  }
  if (x.shape()[0] < 1) fail_value("{}: the input {} has no steps.", op, c.in(0).shape());
  if (h0.ndim() != 3) fail_value("{}: h0 is {}; it must be [layers x directions, batch, units].", op, c.in(1).shape());
  Dims states{layers * ways, x.shape()[1], h0.shape()[2]};
  require_shape(op, "h0", h0, states, x.dtype());
  if (lstm) require_shape(op, "c0", c0, states, x.dtype());
  Ends ends;
  if (c.has("batch_sizes"_attr)) {
    if (!batched) fail_value("{}: batch_sizes was given with a single sequence {}. Leave it out.", op, c.in(0).shape());
    ends = ends_of(op, x, c.ints("batch_sizes"_attr));
  }
  std::vector<Tensor> hs, cs;
  size_t at = first;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> sides;
    for (int64_t way = 0; way < ways; ++way, at += each) {
      Weights w{c.in(at), c.in(at + 1), biases ? c.in(at + 2) : Tensor(), biases ? c.in(at + 3) : Tensor()};
      int64_t k = layer * ways + way;
      auto [y, h, cell] =
          run(op, as_weights(x, w.w_ih), select(h0, 0, k), lstm ? select(c0, 0, k) : Tensor(), w, mode, way == 1, ends);
      sides.push_back(y);
      hs.push_back(h);
      if (lstm) cs.push_back(cell);
    }
    x = ways == 1 ? sides[0] : cat(sides, 2);
    if (layer + 1 < layers && p > 0 && c.b("train"_attr)) x = dropout(x, p, true);
  }
  Tensor h = stack(hs, 0), cell = lstm ? stack(cs, 0) : Tensor();
  if (!batched)
    x = squeeze(x, Dims{1}), h = squeeze(h, Dims{1}), cell = lstm ? squeeze(cell, Dims{1}) : cell;
  else if (batch_first)
    x = transpose(x, 0, 1);
  c.out.push_back(x);
  c.out.push_back(h);
  if (lstm) c.out.push_back(cell);
}

// x, hx, (cx,) w_ih, w_hh, b_ih, b_hh
void cell_body(BodyCall& c, std::string_view mode) {
  const char* op = c.op().name();
  bool lstm = mode == "lstm";
  size_t first = lstm ? 3 : 2;
  const Tensor& weight = c.in(first);
  Tensor x = as_weights(c.in(0), weight), h = as_weights(c.in(1), weight),
         cell = lstm ? as_weights(c.in(2), weight) : Tensor();
  bool batched = x.ndim() == 2;
  if (x.ndim() != 1 && x.ndim() != 2)
    fail_value("{}: the input is {}; it takes [batch, size], or [size].", op, x.shape());
  if (!is_floating(x.dtype()))
    fail_type("{}: the input is {}; it takes floating point tensors only. Convert it first, e.g. x.to(float32).", op,
              name(x.dtype()));
  if (!batched) x = unsqueeze(x, 0), h = unsqueeze(h, 0), cell = lstm ? unsqueeze(cell, 0) : cell;
  if (h.ndim() != 2) fail_value("{}: hx is {}; it must be [batch, units].", op, c.in(1).shape());
  Dims state{x.shape()[0], h.shape()[1]};
  require_shape(op, "hx", h, state, x.dtype());
  if (lstm) require_shape(op, "cx", cell, state, x.dtype());
  auto out =
      run(op, unsqueeze(x, 0), h, cell, {c.in(first), c.in(first + 1), c.in(first + 2), c.in(first + 3)}, mode, false);
  for (size_t i = 1; i < (lstm ? 3u : 2u); ++i) c.out.push_back(batched ? out[i] : squeeze(out[i], Dims{0}));
}

// Of rnn_sequence's inputs, by those of its gates (hidden: of their hidden part) and first states.
void gradients_of(Grad& g, const Tensor& gates, const Tensor& hidden, const Tensor& dh0, const Tensor& dc0) {
  if (g.needs(0)) g.dx(0, gates);
  if (g.needs(1)) g.dx(1, dh0);
  if (g.needs(2)) g.dx(2, dc0);
  if (g.needs(3)) g.dx(3, linear_weight_grad(hidden, states_before(g.y(0), g.x(1), g.b("reverse"_attr))));
  if (g.needs(4)) g.dx(4, sum(hidden, Dims{0, 1}));
}

// The batch's axis of [T, B, H] and [B, H].
void batch_rule(RuleCall& r, std::initializer_list<int> sequences, std::initializer_list<int> states,
                std::initializer_list<int> out_sequences, std::initializer_list<int> out_states) {
  int f = r.rule.factor();
  for (int i : sequences)
    if (given(r, to_size(i))) r.rule.in(to_size(i), 1, f);
  for (int i : states)
    if (given(r, to_size(i))) r.rule.in(to_size(i), 0, f);
  for (int o : out_sequences) r.rule.out(to_size(o), 1, f);
  for (int o : out_states) r.rule.out(to_size(o), 0, f);
}

}  // namespace

HOLON_OP(lstm,
         "lstm(Tensor[] tensors, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool "
         "batch_first, int[]? batch_sizes=None) -> (Tensor, Tensor, Tensor)")
    .doc("A long short-term memory over a sequence. tensors: the input [steps, batch, size], h0 and c0 [layers x "
         "directions, batch, units], then for each layer and direction weight_ih [4 units, size], "
         "weight_hh [4 units, units] and, if has_biases, bias_ih and bias_hh, gates in the order i, f, g, o. "
         "batch_sizes: how many sequences, longest first, have each step, where some end early; of those the outputs "
         "beyond the end mean nothing. Returns the outputs, h_n and c_n.",
         "lstm([ones(2, 2, 3), ones(1, 2, 4), ones(1, 2, 4), ones(16, 3), ones(16, 4)], False, 1, 0.0, False, False, "
         "False)[0].shape")
    .function_only()
    .body([](BodyCall& c) { layers_body(c, "lstm"); });
HOLON_OP(gru,
         "gru(Tensor[] tensors, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool "
         "batch_first, int[]? batch_sizes=None) -> (Tensor, Tensor)")
    .doc("A gated recurrent unit over a sequence. tensors: as for lstm without c0, three gates in the order r, z, n. "
         "Returns the outputs [steps, batch, units] and h_n [layers x directions, batch, units].",
         "gru([ones(2, 2, 3), ones(1, 2, 4), ones(12, 3), ones(12, 4)], False, 1, 0.0, False, False, False)[0].shape")
    .function_only()
    .body([](BodyCall& c) { layers_body(c, "gru"); });
HOLON_OP(rnn_tanh,
         "rnn_tanh(Tensor[] tensors, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
         "bool batch_first, int[]? batch_sizes=None) -> (Tensor, Tensor)")
    .doc(
        "h = tanh(x weight_ihᵀ + bias_ih + h weight_hhᵀ + bias_hh) over a sequence [steps, batch, size]. tensors: as "
        "for lstm without c0. Returns the outputs and h_n.",
        "rnn_tanh([ones(2, 2, 3), ones(1, 2, 4), ones(4, 3), ones(4, 4)], False, 1, 0.0, False, False, False)[0].shape")
    .function_only()
    .body([](BodyCall& c) { layers_body(c, "tanh"); });
HOLON_OP(rnn_relu,
         "rnn_relu(Tensor[] tensors, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
         "bool batch_first, int[]? batch_sizes=None) -> (Tensor, Tensor)")
    .doc(
        "As rnn_tanh, with relu: outputs [steps, batch, units] and h_n.",
        "rnn_relu([ones(2, 2, 3), ones(1, 2, 4), ones(4, 3), ones(4, 4)], False, 1, 0.0, False, False, False)[0].shape")
    .function_only()
    .body([](BodyCall& c) { layers_body(c, "relu"); });
HOLON_OP(lstm_cell,
         "lstm_cell(Tensor x, Tensor hx, Tensor cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> "
         "(Tensor, Tensor)")
    .doc("One step of lstm: x [batch, size], hx and cx [batch, units] to the new h and c.",
         "lstm_cell(ones(2, 3), ones(2, 4), ones(2, 4), ones(16, 3), ones(16, 4))[0].shape")
    .function_only()
    .body([](BodyCall& c) { cell_body(c, "lstm"); });
HOLON_OP(gru_cell,
         "gru_cell(Tensor x, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor")
    .doc("One step of gru: x [batch, size] and hx [batch, units] to the new h.",
         "gru_cell(ones(2, 3), ones(2, 4), ones(12, 3), ones(12, 4)).shape")
    .function_only()
    .body([](BodyCall& c) { cell_body(c, "gru"); });
HOLON_OP(rnn_tanh_cell,
         "rnn_tanh_cell(Tensor x, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor")
    .doc("One step of rnn_tanh: x [batch, size] and hx [batch, units] to the new h.",
         "rnn_tanh_cell(ones(2, 3), ones(2, 4), ones(4, 3), ones(4, 4)).shape")
    .function_only()
    .body([](BodyCall& c) { cell_body(c, "tanh"); });
HOLON_OP(rnn_relu_cell,
         "rnn_relu_cell(Tensor x, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor")
    .doc("One step of rnn_relu: x [batch, size] and hx [batch, units] to the new h.",
         "rnn_relu_cell(ones(2, 3), ones(2, 4), ones(4, 3), ones(4, 4)).shape")
    .function_only()
    .body([](BodyCall& c) { cell_body(c, "relu"); });

HOLON_OP(rnn_sequence,
         "rnn_sequence(Tensor gx, Tensor h0, Tensor? c0, Tensor w_hh, Tensor? b_hh, str mode, bool reverse) -> "
         "(Tensor, Tensor, Tensor)")
    .doc("The steps of a recurrent layer, with gx [steps, batch, gates], the input's contribution to the gates: hidden "
         "states, cells, and what the gradient needs.")
    .flops([](const CallShapes& c) { return 2 * elements(c.in(0)) * static_cast<double>(c.in(3).back()); })
    .hidden()
    .infer([](Infer& c) {
      RnnMode mode = mode_of(c.text("mode"_attr));
      c.require(c.shape(0).size() == 3 && c.shape(1).size() == 2 && c.shape(3).size() == 2,
                "gx has three axes, h0 and w_hh two", "Call lstm, gru or rnn_tanh.");
      c.require(mode != RnnMode::kLstm || c.present(2), "c0 is missing", "An LSTM has cells: call lstm.");
      const int64_t gates = c.shape(0)[2];
      require_shape(c, 1, {c.shape(0)[1], c.shape(3)[1]});
      require_shape(c, 2, c.shape(1));
      require_shape(c, 3, {gates, c.shape(1)[1]});
      require_shape(c, 4, {gates});
      Dims y{c.shape(0)[0], c.shape(0)[1], c.shape(1)[1]}, cells = y, saved = y;
      if (mode != RnnMode::kLstm) cells[2] = 0;
      saved[2] *= kernels::rnn_saved(mode);
      for (const Dims& s : {y, cells, saved}) c.out(s, c.dtype_of(0));
    })
    .rule([](RuleCall& r) {
      batch_rule(r, {0}, {1, 2}, {0, 1, 2}, {});
    })
    .kernel([](KernelCall& c) {
      kernels::rnn_sequence(mode_of(c.text("mode"_attr)), c.in(0), c.in(1), c.in(2), c.in(3), c.in(4),
                            c.b("reverse"_attr), c.out(0), c.out(1), c.out(2));
    })
    .saves({1, 2, 3}, {0, 1, 2})
    .grad([](Grad& g) {
      auto mode = g.text("mode"_attr);
      bool reverse = g.b("reverse"_attr), gru = mode == "gru";
      Tensor dc = mode == "lstm" ? g.dy(1) : Tensor();
      const bool by_ops = grad_enabled() || g.has_dy(2);
      if (by_ops) {
        auto all = rnn_gradients({mode, reverse, g.y(0), g.y(1), g.y(2), g.x(1), g.x(2), g.x(3)}, g.dy(0), dc, g.dy(2));
        return gradients_of(g, all.dgates, gru ? all.dhidden : all.dgates, all.dh0, all.dc0);
      }
      auto d = rnn_sequence_backward(g.dy(0), dc, g.y(0), g.y(1), g.y(2), g.x(1), g.x(2), g.x(3), mode, reverse);
      gradients_of(g, d[0], gru ? d[1] : d[0], d[2], d[3]);
    });
HOLON_OP(rnn_sequence_backward,
         "rnn_sequence_backward(Tensor? dy, Tensor? dc, Tensor y, Tensor c, Tensor saved, Tensor h0, Tensor? c0, "
         "Tensor w_hh, str mode, bool reverse) -> (Tensor, Tensor, Tensor, Tensor)")
    .doc("Gradients of rnn_sequence in gx, in the hidden part of the gates where it differs (GRU), in h0 and c0.")
    .flops([](const CallShapes& c) { return 2 * elements(c.out()) * static_cast<double>(c.in(7).back()); })
    .hidden()
    .infer([](Infer& c) {
      RnnMode mode = mode_of(c.text("mode"_attr));
      c.require(c.shape(2).size() == 3 && c.shape(5).size() == 2 && c.shape(7).size() == 2,
                "y has three axes, h0 and w_hh two", "It is the gradient of lstm, gru and rnn_tanh.");
      c.require(mode != RnnMode::kLstm || c.present(6), "c0 is missing", "An LSTM has cells.");
      Dims gates = c.shape(2), cell = c.shape(5);
      gates[2] = c.shape(7)[0];
      Dims hidden = gates;
      if (mode != RnnMode::kGru) hidden[2] = 0;
      if (mode != RnnMode::kLstm) cell[1] = 0;
      for (const Dims& s : {gates, hidden, c.shape(5), cell}) c.out(s, c.dtype_of(2));
    })
    .rule([](RuleCall& r) {
      batch_rule(r, {0, 1, 2, 3, 4}, {5, 6}, {0, 1}, {2, 3});
      if (given(r, 0) && given(r, 1))
        pass_partial(r, {0, 1}, {0, 1, 2, 3});
      else
        pass_partial(r, {given(r, 0) ? 0 : 1}, {0, 1, 2, 3});
    })
    .kernel([](KernelCall& c) {
      kernels::rnn_sequence_backward(mode_of(c.text("mode"_attr)), c.in(0), c.in(1), c.in(2), c.in(3), c.in(4), c.in(5),
                                     c.in(6), c.in(7), c.b("reverse"_attr), c.out(0), c.out(1), c.out(2), c.out(3));
    });

}  // namespace holon::ops
