// Python's slices, start:stop:step, of an axis.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "holon/base/ceil_div.h"

namespace holon {

struct SliceRange {
  int64_t start, step, count;
};

// The part of an axis of n elements that a slice means; start and stop may count from the end. step is at least 1, and
// comes back as at most n, past which it means the same: then start + count * step cannot overflow.
inline SliceRange slice_range(std::optional<int64_t> start, std::optional<int64_t> stop, int64_t step, int64_t n) {
  auto clip = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + n : v, 0, n); };
  const int64_t from = start ? clip(*start) : 0, to = stop ? clip(*stop) : n;
  step = std::min(step, std::max<int64_t>(n, 1));
  return {from, step, to > from ? ceil_div(to - from, step) : 0};
}

// A slice without gaps: [begin, end) of an axis of `size` elements.
struct Stretch {
  int axis;
  int64_t begin, end, size;
  bool without_axis = false;  // it is one element, and what shows it does not have the axis
};

}  // namespace holon
