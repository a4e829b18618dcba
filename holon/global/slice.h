// Which part of a logical tensor each rank of a placement holds.
#pragma once

#include <cstdint>

#include "holon/array/dims.h"
#include "holon/global/nd_sbp.h"
#include "holon/global/placement.h"

namespace holon {

struct Interval {
  int64_t begin, size;
  int64_t end() const { return begin + size; }
  bool operator==(const Interval&) const = default;
};

// Piece i of n elements in `parts` pieces: n / parts each, and one more for i < n mod parts, so that the first is
// never smaller than another. Post: the pieces are disjoint, in order, and cover [0, n).
inline Interval balanced_split(int64_t n, int64_t parts, int64_t i) {
  int64_t size = n / parts, more = n % parts;
  return {i * size + (i < more ? i : more), size + (i < more ? 1 : 0)};
}

struct Region {
  Dims offset, shape;
  bool operator==(const Region&) const = default;
};

// The part of the index-th rank. The hierarchy's axes cut in order, each the piece that those before it left (nested).
// Post: over one copy (P and B axes fixed) the slices are disjoint and cover the shape.
// Pre: check_nd_sbp() accepts the arguments.
Region region_of(const Dims& logical, const Placement& placement, const NdSbp& nd_sbp, int index);

// Errors (RuntimeError), naming the op: not one sbp per axis of the hierarchy, or a split axis that the shape has not.
void check_nd_sbp(const Dims& shape, const Placement& placement, const NdSbp& nd_sbp, const char* op);

}  // namespace holon
