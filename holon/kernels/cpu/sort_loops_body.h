// The body of the loops over keys, compiled once per instruction set.
#include "holon/kernels/cpu/sort_loops.h"
#include "holon/kernels/cpu/vectors.h"

namespace holon::kernels::HOLON_ISA {
namespace {

typedef int32_t Keys __attribute__((vector_size(kVectorBytes)));
typedef int32_t StoredKeys __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));
constexpr int kLanes = kVectorBytes / 4;
// Keys that are compared at a time. More would be more work for keys behind the last one.
constexpr int kStep = 16, kVectors = kStep / kLanes;
static_assert(kStep <= kSortPadding);

void order_by_counting(const int32_t* keys, int64_t n, int64_t* order) {
  Keys numbers = {};
  for (int l = 0; l < kLanes; ++l) numbers[l] = l;
  for (int64_t i = 0; i < n; i += kStep) {
    // Those in front of each: the smaller ones, and the equal ones that came before. True is -1.
    Keys mine[kVectors], rank[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      mine[v] = *reinterpret_cast<const StoredKeys*>(keys + i + v * kLanes);
      rank[v] = static_cast<int32_t>(i) - Keys{};
    }
    const int64_t end = n < i + kStep ? n : i + kStep;
    for (int64_t j = 0; j < i; ++j) HOLON_UNROLL for (int v = 0; v < kVectors; ++v) rank[v] += mine[v] < keys[j];
    for (int64_t j = i; j < end; ++j) HOLON_UNROLL for (int v = 0; v < kVectors; ++v) {
        const int32_t number = static_cast<int32_t>(j - i) - v * kLanes;
        rank[v] -= (mine[v] > keys[j]) | ((mine[v] == keys[j]) & (numbers > number));
      }
    for (int64_t j = end; j < n; ++j) HOLON_UNROLL for (int v = 0; v < kVectors; ++v) rank[v] -= mine[v] > keys[j];
    int32_t ranks[kStep];
    __builtin_memcpy(ranks, rank, sizeof ranks);
    for (int64_t l = i; l < end; ++l) order[ranks[l - i]] = l;
  }
}

// A list of the smallest so far, which most others do not enter.
void list_smallest(const int32_t* keys, int64_t n, int64_t k, int64_t* order) {
  int32_t listed[kListed];
  auto insert = [&](int64_t i, int64_t at) {
    const int32_t key = keys[i];
    for (; at > 0 && key < listed[at - 1]; --at) {
      listed[at] = listed[at - 1];
      order[at] = order[at - 1];
    }
    listed[at] = key;
    order[at] = i;
  };
  if (k == 0) return;
  for (int64_t i = 0; i < k; ++i) insert(i, i);
  for (int64_t i = k; i < n; i += kStep) {
    Keys smaller = {};
    HOLON_UNROLL for (int v = 0; v < kVectors; ++v) smaller |=
        *reinterpret_cast<const StoredKeys*>(keys + i + v * kLanes) < listed[k - 1];
    int64_t words[kVectorBytes / 8], any = 0;
    __builtin_memcpy(words, &smaller, sizeof words);
    HOLON_UNROLL for (int w = 0; w < kVectorBytes / 8; ++w) any |= words[w];
    if (any == 0) continue;
    const int64_t end = n < i + kStep ? n : i + kStep;
    for (int64_t j = i; j < end; ++j)
      if (keys[j] < listed[k - 1]) insert(j, k - 1);
  }
}

}  // namespace

SortLoops sort_loops() { return {64 + 2 * kVectorBytes, order_by_counting, list_smallest}; }

}  // namespace holon::kernels::HOLON_ISA
