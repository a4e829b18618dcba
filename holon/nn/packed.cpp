#include "holon/nn/packed.h"

#include <algorithm>
#include <optional>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/ops/create.h"
#include "holon/ops/index.h"
#include "holon/ops/packed.h"
#include "holon/ops/shape.h"
#include "holon/ops/values.h"

namespace holon::nn {

Tensor lengths_of(const PackedSequence& packed) {
  std::vector<int64_t> sizes = to_vector<int64_t>(packed.batch_sizes), lengths;
  for (size_t t = 0; t < sizes.size(); ++t)
    for (int64_t k = 0; k < sizes[t]; ++k)
      if (t == 0)
        lengths.push_back(1);
      else
        ++at_index(lengths, k);
  return tensor(lengths, {static_cast<int64_t>(lengths.size())});
}

namespace utils::rnn {

PackedSequence pack_padded_sequence(const Tensor& x, const Tensor& lengths, bool batch_first, bool enforce_sorted) {
  auto p = holon::pack_padded_sequence(x, to_vector<int64_t>(lengths), batch_first, enforce_sorted);
  if (enforce_sorted) return {p.data, p.batch_sizes, {}, {}};
  return {p.data, p.batch_sizes, p.sorted_indices, p.unsorted_indices};
}

std::pair<Tensor, Tensor> pad_packed_sequence(const PackedSequence& packed, bool batch_first, Scalar padding_value,
                                              std::optional<int64_t> total_length) {
  auto [padded, lengths] = holon::pad_packed_sequence(packed.data, to_vector<int64_t>(packed.batch_sizes), batch_first,
                                                      padding_value, total_length);
  if (!packed.unsorted_indices.defined()) return {padded, lengths};
  const Tensor& order = packed.unsorted_indices;
  return {index_select(padded, batch_first ? 0 : 1, order), index_select(lengths, 0, order)};
}

Tensor pad_sequence(const std::vector<Tensor>& sequences, bool batch_first, Scalar padding_value) {
  if (sequences.empty()) fail_value("pad_sequence: there are no sequences.");
  int64_t longest = 0;
  auto rest = [](const Tensor& t) {
    Dims d = t.shape();
    d.erase(0);
    return d;
  };
  for (const Tensor& s : sequences) {
    if (s.ndim() < 1 || sequences[0].ndim() < 1 || rest(s) != rest(sequences[0]))
      fail_value("pad_sequence: a sequence is {}, the first is {}. They may differ in their first axis only.",
                 s.shape(), sequences[0].shape());
    longest = std::max(longest, s.shape()[0]);
  }
  std::vector<Tensor> rows;
  for (const Tensor& s : sequences) {
    Dims shape = s.shape();
    shape[0] = longest - shape[0];
    if (shape[0] == 0) {
      rows.push_back(s);
      continue;
    }
    FullOptions o{.dtype = s.dtype()};
    if (s.is_local()) o.device = s.device();
    if (s.is_global()) o.placement = s.placement(), o.sbp = NdSbp::filled(s.nd_sbp().size(), sbp::broadcast());
    rows.push_back(cat({s, full(shape, padding_value, o)}, 0));
  }
  return stack(rows, batch_first ? 0 : 1);
}

PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted) {
  std::vector<int64_t> lengths;
  for (const Tensor& s : sequences) lengths.push_back(s.ndim() > 0 ? s.shape()[0] : 0);
  return rnn::pack_padded_sequence(rnn::pad_sequence(sequences),
                                   tensor(lengths, {static_cast<int64_t>(lengths.size())}), false, enforce_sorted);
}

}  // namespace utils::rnn
}  // namespace holon::nn
