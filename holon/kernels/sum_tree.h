// The order of a sum that no layout changes (flow.deterministic(layout_free=True)).
//
// A sum of n terms in the order of their global index is a binary tree: it is halved while it has an even number of
// terms, more than kLeaf; what is left is a leaf, whose terms are added one after the other. A half is the tree of its
// own length. So the terms [i n / r, (i + 1) n / r) of r = 2^k ranks are a subtree, as long as they are a leaf or more:
// a rank adds up its own terms without knowing of the others, and the ranks' sums, added in pairs of neighbours, are
// the rest of the tree. Leaves begin at +0, so that terms of 0 that are left out change nothing.
#pragma once

#include <bit>
#include <cstdint>

namespace holon::kernels {

inline constexpr int64_t kSumLeaf = 8;

// The number of terms of a leaf of the sum of n: it divides n, by a power of two.
constexpr int64_t leaf_length(int64_t n) {
  while (n > kSumLeaf && n % 2 == 0) n /= 2;
  return n;
}

// The number of equal parts, a power of two, into which the sum of n terms can be cut so that each is a subtree.
constexpr int64_t subtrees(int64_t n) { return n > 0 ? n / leaf_length(n) : 1; }

// Adds up leaves, which come in order: what is pending is one value for each bit of their number. Level l of a value
// is the sum of 2^l leaves. join(l) replaces the value that is carried by [level l] + carried, keep(l) stores it there.
// Always inlined: what is carried may be in registers.
template <class Join, class Keep>
[[gnu::always_inline]] inline void push_leaf(uint64_t number, Join&& join, Keep&& keep) {
  const int levels = std::countr_one(number);
  for (int l = 0; l < levels; ++l) join(l);
  keep(levels);
}

}  // namespace holon::kernels
