// x[...] for C++: index(x, {0, Slice(1, 4), Ellipsis, None, t}) with the meaning of Python's x[0, 1:4, ..., None, t].
#pragma once

#include <optional>
#include <vector>

#include "holon/tensor/tensor.h"

namespace holon {

namespace indexing {

// start, start + step, ... before stop; both may count from the end.
struct Slice {
  std::optional<int64_t> start, stop;
  int64_t step = 1;
  Slice() = default;
  Slice(std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step = 1)
      : start(start), stop(stop), step(step) {}
};
struct NoneType {};
struct EllipsisType {};
inline constexpr NoneType None;          // a new axis of size 1
inline constexpr EllipsisType Ellipsis;  // the axes that are left

// One entry of a key.
struct Index {
  enum class Kind { kInt, kSlice, kNone, kEllipsis, kTensor };
  Kind kind;
  int64_t at = 0;
  Slice slice;
  Tensor tensor;  // integers, or a mask
  Index(int64_t at) : kind(Kind::kInt), at(at) {}
  Index(int at) : kind(Kind::kInt), at(at) {}
  Index(Slice slice) : kind(Kind::kSlice), slice(slice) {}
  Index(NoneType) : kind(Kind::kNone) {}
  Index(EllipsisType) : kind(Kind::kEllipsis) {}
  Index(Tensor tensor) : kind(Kind::kTensor), tensor(std::move(tensor)) {}
};

}  // namespace indexing

// Ints, slices, None and Ellipsis give a view; index tensors (int32, int64) and masks (bool) a copy. Errors
// (IndexError): too many indices, one out of range, a mask of another shape. Collective where a mask or index is
// global.
Tensor index(const Tensor& x, const std::vector<indexing::Index>& key);

// x[key] = value, which broadcasts and is converted to x's dtype; or += where accumulate. It is recorded where x or
// value requires grad. Errors: as of index(); a leaf that requires grad, or a view of one, while ops are recorded
// (RuntimeError); a value that does not broadcast (ValueError). Collective where x, value or an index is global.
void index_put_(const Tensor& x, const std::vector<indexing::Index>& key, const Tensor& value, bool accumulate = false);

}  // namespace holon
