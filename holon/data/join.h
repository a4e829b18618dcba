// From the parts of a batch that ranks loaded to global tensors.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "holon/data/place.h"
#include "holon/ops/part_metas.h"

namespace holon::data {

// With what the tensors of a batch are padded: one value for all, or one for each (nothing: it is not); empty: no
// padding.
using Padding = std::vector<std::optional<Scalar>>;

// rows with `value` behind the end of each axis after the first that is shorter than in `sizes`.
Tensor padded(const Tensor& rows, const Dims& sizes, const Scalar& value);

// Joins one batch after the other. Ranks that collate for themselves may come to other lengths, say the longest of
// their own rows, so they agree on what a batch looks like: without a message as long as the batches look as they did,
// by one where they change.
class BatchJoiner {
 public:
  // Errors: a partial sum.
  BatchJoiner(const Placement& placement, const NdSbp& nd_sbp);

  // The global tensors of `samples` rows: `rows` are those that part_rows() names, as local tensors; where they are
  // none, any row, which tells shape and dtype. Collective over the world. padding: axes
  // behind the first are brought to the longest that a rank has, at the price of a message for each batch; without,
  // ranks whose lengths differ raise.
  // structure: whatever else is to be alike, such as the names of the tensors. Errors: another number of rows; a
  // global tensor; the ranks' batches do not belong together.
  std::vector<Tensor> join(std::span<const Tensor> rows, int64_t samples, const Padding& padding = {},
                           uint64_t structure = 0);

 private:
  std::vector<Dims> agree(std::span<const Tensor> rows, int64_t samples, const Padding& padding, uint64_t structure);

  Placement placement_;
  NdSbp nd_sbp_;
  ops::Foreseen foreseen_;
};

}  // namespace holon::data
