// Checks of indices. Compiled for each instruction set.
#include "holon/kernels/cpu/table.h"
#include "holon/kernels/functors.h"

namespace holon::kernels::HOLON_ISA {

namespace {

// An index outside of [0, size) makes one of two terms negative. Signs are gathered by the vectors of any instruction
// set; comparisons of 64 bits are not in the oldest.
bool all_within(const int64_t* indices, int64_t n, int64_t size) {
  const auto last = static_cast<uint64_t>(size) - 1;
  uint64_t signs = 0;
#pragma omp simd reduction(| : signs)
  for (int64_t i = 0; i < n; ++i) {
    const auto v = static_cast<uint64_t>(indices[i]);
    signs |= v | (last - v);
  }
  return signs >> 63 == 0;
}

}  // namespace

void fill_index(Table& t) { t.all_within = all_within; }

}  // namespace holon::kernels::HOLON_ISA
