// x[...], read and written.
#pragma once

#include <vector>

#include "holon/tensor/indexing.h"

namespace holon {

// x[key]. Ints, slices, None and Ellipsis give a view; index tensors (int32, int64) and masks (bool) a copy. Errors
// (IndexError): too many indices, one out of range, a mask of another shape. Collective where a mask or index is
// global.
Tensor index(const Tensor& x, const std::vector<indexing::Index>& key);

// x[key] = value, which broadcasts and is converted to x's dtype; or += where accumulate. It is recorded where x or
// value requires grad. Errors: as of index(); a leaf that requires grad, or a view of one, while ops are recorded
// (RuntimeError); a value that does not broadcast (ValueError). Collective where x, value or an index is global.
void index_put_(const Tensor& x, const std::vector<indexing::Index>& key, const Tensor& value, bool accumulate = false);
void index_put_(const Tensor& x, const std::vector<indexing::Index>& key, Scalar value, bool accumulate = false);

}  // namespace holon
