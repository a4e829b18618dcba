// Packed sequences.
#include "sample.h"

namespace holon::testing {

static const Samples samples([](const Samples::Add& add) {
  add("pack_padded_sequence", {x({4, 5, 2})}, {{"lengths", Dims{2, 4, 1, 3, 4}}, {"enforce_sorted", false}});
  add("pack_padded_sequence", {x({5, 4})}, {{"lengths", Dims{4, 3, 3, 1, 1}}, {"batch_first", true}});
  add("pad_packed_sequence", {x({4, 3})}, {{"batch_sizes", Dims{3, 1}}, {"total_length", 3}, {"padding_value", 0.5}});
  add("pad_packed_sequence", {x({6})}, {{"batch_sizes", Dims{3, 2, 1}}, {"batch_first", true}});
});

}  // namespace holon::testing
