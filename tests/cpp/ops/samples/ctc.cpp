// Connectionist temporal classification.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* reduction : {"mean", "sum", "none"})
    add("ctc_loss", {x({4, 3, 3}), ints({3, 2}, 1, 2), ints({3}, 3, 4), ints({3}, 1, 2)}, {{"reduction", reduction}});
  add("ctc_loss", {x({5, 5, 4}), ints({5, 2}, 0, 2), ints({5}, 3, 5), ints({5}, 0, 2)}, {{"blank", 3}});
  // Two labels do not fit one step: the loss is infinite, and taken for 0.
  add("ctc_loss", {x({4, 3, 3}), ints({3, 2}, 1, 2), ints({3}, 1, 4), ints({3}, 2, 2)}, {{"zero_infinity", true}});
  add("ctc_loss", {x({4, 3}), ints({2}, 1, 2), ints({}, 4, 4), ints({}, 2, 2)});
  add("ctc_loss_alpha", {x({4, 3, 3}), ints({3, 2}, 1, 2), ints({3}, 3, 4), ints({3}, 1, 2)}, {{"blank", 0}}, false);
  add("ctc_loss_backward",
      {x({5}), x({4, 5, 3}), ints({5, 1}, 1, 2), ints({5}, 3, 4), ints({5}, 1, 1), x({5, 4, 3}, -4, -3, float64)},
      {{"blank", 0}});
});

}  // namespace holon::testing
