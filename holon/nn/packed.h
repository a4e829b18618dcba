// Batches of sequences of unlike lengths for recurrent layers, without padding.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "holon/array/scalar.h"
#include "holon/tensor/tensor.h"

namespace holon::nn {

// The steps one after the other, and of each step the sequences that are still going on, longest first. data: [sum of
// lengths, ...]; batch_sizes: how many sequences have each step, int64. sorted_indices: which sequence of the
// batch is at which place, unsorted_indices: the inverse; undefined where the batch is in that order.
struct PackedSequence {
  Tensor data, batch_sizes, sorted_indices, unsorted_indices;
};

// The sequences' lengths, longest first, as they are packed.
Tensor lengths_of(const PackedSequence& packed);

namespace utils::rnn {

// The first lengths[i] steps of each sequence of x [l, n, ...] ([n, l, ...] if batch_first). Errors: a length outside
// [1, l]; with enforce_sorted, lengths that do not fall.
PackedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths, bool batch_first = false,
                                    bool enforce_sorted = true);
// The sequences in the batch's order, filled up with padding_value to the longest or to total_length, and their
// lengths. Errors: a total_length below the longest.
std::pair<Tensor, Tensor> pad_packed_sequence(const PackedSequence& packed, bool batch_first = false,
                                              Scalar padding_value = 0.0, std::optional<int64_t> total_length = {});
// Sequences [length, ...] side by side, [longest, n, ...] (or [n, longest, ...]), filled up with padding_value. Errors:
// no sequence; they differ in more than their first axis.
Tensor pad_sequence(const std::vector<Tensor>& sequences, bool batch_first = false, Scalar padding_value = 0.0);
// The same, packed.
PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted = true);

}  // namespace utils::rnn
}  // namespace holon::nn
