// Orders of short rows and of the few smallest, by comparing vectors of keys; three builds of one body
// (sort_loops_body.h).
#pragma once

#include <cstdint>

namespace holon::kernels {

// Keys may be read, not used, up to this many behind the last one.
inline constexpr int64_t kSortPadding = 16;
// The most that list_smallest() lists.
inline constexpr int64_t kListed = 32;

struct SortLoops {
  int64_t counted;  // order_by_counting() is the fastest way up to this many keys
  // The numbers 0 .. n - 1 in order of the keys; those of equal keys rise. Its time is quadratic; it does not branch.
  void (*order_by_counting)(const int32_t* keys, int64_t n, int64_t* order);
  // The first k of that order; k <= kListed, k <= n.
  void (*list_smallest)(const int32_t* keys, int64_t n, int64_t k, int64_t* order);
};

const SortLoops& sort_loops();

namespace base {
SortLoops sort_loops();
}
namespace avx2 {
SortLoops sort_loops();
}
namespace avx512 {
SortLoops sort_loops();
}

}  // namespace holon::kernels
