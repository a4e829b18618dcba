// The keys of x[...]: x[0], x[{Slice(1, 4), Ellipsis, None, t}], with the meaning of Python's x[1:4, ..., None, t].
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "holon/tensor/tensor.h"

namespace holon {

namespace indexing {

// The types of None and Ellipsis.
struct NoneType {
  operator std::optional<int64_t>() const { return {}; }
};
struct EllipsisType {};
inline constexpr NoneType None;          // a new axis of size 1; in a Slice, no bound
inline constexpr EllipsisType Ellipsis;  // the axes that are left

// start, start + step, ... before stop; both may count from the end. Slice(): all.
struct Slice {
  std::optional<int64_t> start, stop;
  int64_t step = 1;
  Slice() = default;
  Slice(std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step = 1)
      : start(start), stop(stop), step(step) {}
};

// One entry of a key.
struct Index {
  enum class Kind { kInt, kSlice, kNone, kEllipsis, kTensor };
  Kind kind;
  int64_t at = 0;
  Slice slice;
  Tensor tensor;  // integers, or a mask
  template <Integer T>
  Index(T at) : kind(Kind::kInt), at(static_cast<int64_t>(at)) {}
  Index(Slice slice) : kind(Kind::kSlice), slice(slice) {}
  Index(NoneType) : kind(Kind::kNone) {}
  Index(EllipsisType) : kind(Kind::kEllipsis) {}
  Index(Tensor tensor) : kind(Kind::kTensor), tensor(std::move(tensor)) {}
};

}  // namespace indexing

using indexing::Ellipsis;
using indexing::None;
using indexing::Slice;

}  // namespace holon
