// Rows that belong to experts.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  // Up to 2 rows for each of 3 experts: one row at least belongs to none.
  const Input gate = x({3, 5, 4}, -1, 1), down = x({3, 4, 5}, -1, 1), counts = ints({2, 3}, 0, 2);
  add("expert_swiglu", {x({2, 7, 4}, -1, 1), gate, gate, down, counts});
  add("expert_swiglu_backward", {x({2, 7, 4}, -1, 1), x({2, 7, 4}, -1, 1), gate, gate, down, counts}, {}, false);
});

}  // namespace holon::testing
