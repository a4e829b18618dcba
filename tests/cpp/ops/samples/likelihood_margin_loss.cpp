// Losses of distributions, and of margins between classes.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  for (const char* reduction : {"mean", "sum", "none"}) {
    add("poisson_nll_loss", {x({5, 3}), x({5, 3}, 0.1, 3)}, {{"reduction", reduction}, {"full", true}});
    add("gaussian_nll_loss", {x({5, 3}), x({5, 3}), x({5, 3}, 0.5, 2)}, {{"reduction", reduction}});
    add("multi_margin_loss", {x({5, 3}), ints({5}, 0, 2), none()}, {{"reduction", reduction}});
    // No margin is exactly reached.
    add("multilabel_margin_loss", {x({5, 3}, -0.45, 0.45), ints({5, 3}, -1, 2)}, {{"reduction", reduction}});
    add("multilabel_soft_margin_loss", {x({5, 3}), x({5, 3}, 0, 1), none()}, {{"reduction", reduction}});
  }
  add("poisson_nll_loss", {x({5, 3}, 0.1, 2), x({5, 3}, 0.1, 3)}, {{"log_input", false}});
  add("gaussian_nll_loss", {x({5, 3}), x({5, 3}), x({5}, 0.5, 2)}, {{"full", true}});
  add("gaussian_nll_loss", {x({5, 3}), x({5, 3}), x({5, 1}, 0.5, 2)});
  add("multi_margin_loss", {x({5, 3}), ints({5}, 0, 2), x({3}, 0.5, 2)}, {{"p", 2}, {"margin", 0.7}});
  add("multi_margin_loss", {x({3}), ints({}, 0, 2), none()});
  add("multilabel_margin_loss", {x({3}, -0.45, 0.45), ints({3}, -1, 2)});
  add("multilabel_soft_margin_loss", {x({5, 3}), x({5, 3}, 0, 1), x({3}, 0.5, 2)});
});

}  // namespace holon::testing
