// Rows that belong to experts.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  // 2 choices for each row, of 3 experts or none; the last sample has rows of one axis and one choice.
  const Input gate = x({3, 5, 4}, -1, 1), down = x({3, 4, 5}, -1, 1);
  const Input rows = x({3, 5, 4}, -1, 1), experts = ints({3, 5, 2}, -1, 2), weights = x({3, 5, 2}, 0.1, 1);
  add("expert_swiglu", {rows, experts, weights, gate, gate, down});
  // An axis of 1: the search for missing signatures leaves it out, as 7 inputs and 5 outputs have 200 million ways to
  // be divided.
  const Input few = x({5, 1, 4}, -1, 1), few_experts = ints({5, 1, 2}, -1, 2), few_weights = x({5, 1, 2}, 0.1, 1);
  add("expert_swiglu_backward", {few, few, few_experts, few_weights, gate, gate, down}, {}, false);
  add("expert_capacity", {ints({3, 6, 2}, -1, 2)}, {{"n_experts", 3}, {"capacity", 2}});
  add("expert_swiglu", {x({7, 4}, -1, 1), ints({7, 1}, 0, 2), x({7, 1}, 0.1, 1), gate, gate, down});
});

}  // namespace holon::testing
