// Compositions behind layers.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("bilinear", {x({5, 3}), x({5, 4}), x({2, 3, 4}), x({2})});
  add("bilinear", {x({2, 5, 3}), x({2, 5, 4}), x({7, 3, 4}), none()});
  add("orthonormalize", {x({3, 5})}, {}, false);
  add("orthonormalize", {x({5, 3})}, {}, false);
});

}  // namespace holon::testing
