// Recurrent layers and cells.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  constexpr int64_t kBatch = 3, kIn = 2, kUnits = 2;
  struct Kind {
    const char* op;
    const char* cell;
    const char* mode;
    int64_t gates;
  };
  for (Kind k : {Kind{"lstm", "lstm_cell", "lstm", 4},
                 {"gru", "gru_cell", "gru", 3},
                 {"rnn_tanh", "rnn_tanh_cell", "tanh", 1},
                 {"rnn_relu", "rnn_relu_cell", "relu", 1}}) {
    bool lstm = k.gates == 4;
    int64_t width = k.gates * kUnits;
    auto tensors = [&](Input in, int64_t layers, int64_t ways, bool biases) {
      Input state = x({layers * ways, kBatch, kUnits}, -1, 1);
      std::vector<Input> list{in, state};
      if (lstm) list.push_back(state);
      for (int64_t l = 0; l < layers; ++l)
        for (int64_t w = 0; w < ways; ++w) {
          list.push_back(x({width, l ? kUnits * ways : kIn}, -1, 1));
          list.push_back(x({width, kUnits}, -1, 1));
          if (biases) list.push_back(x({width}, -1, 1)), list.push_back(x({width}, -1, 1));
        }
      return list;
    };
    auto attrs = [](bool biases, int layers, bool both, bool batch_first) {
      return Attributes{{"has_biases", biases}, {"num_layers", layers},  {"dropout", 0.0},
                        {"train", true},        {"bidirectional", both}, {"batch_first", batch_first}};
    };
    // A relu's kinks lie between finite differences.
    bool smooth = std::string_view(k.mode) != "relu";
    add(k.op, tensors(x({2, kBatch, kIn}), 1, 1, true), attrs(true, 1, false, false), smooth);
    add(k.op, tensors(x({kBatch, 3, kIn}), 2, 2, false), attrs(false, 2, true, true), smooth);
    Attributes ends = attrs(true, 2, true, false);
    ends.emplace_back("batch_sizes", Dims{3, 2});
    add(k.op, tensors(x({3, kBatch, kIn}), 2, 2, true), ends, smooth);
    std::vector<Input> cell{x({kBatch, kIn}),   x({kBatch, kUnits}), x({width, kIn}),
                            x({width, kUnits}), x({width}),          none()};
    if (lstm) cell.insert(cell.begin() + 2, x({kBatch, kUnits}));
    add(k.cell, cell, {}, smooth);
    for (bool reverse : {false, true}) {
      Attributes of{{"mode", k.mode}, {"reverse", reverse}};
      Input c0 = lstm ? x({5, kUnits}) : none();
      add("rnn_sequence", {x({3, 5, width}), x({5, kUnits}), c0, x({width, kUnits}), reverse ? none() : x({width})}, of,
          smooth);
      Input y = x({3, 5, kUnits}, -1, 1), saved = x({3, 5, k.gates >= 3 ? 4 * kUnits : 0}, 0.1, 0.9),
            c = x({3, 5, lstm ? kUnits : 0}, -1, 1);
      add("rnn_sequence_backward",
          {y, lstm && !reverse ? y : none(), y, c, saved, x({5, kUnits}), c0, x({width, kUnits})}, of);
    }
  }
});

}  // namespace holon::testing
