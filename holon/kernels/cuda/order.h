// Putting keys in order on a device: stable, by their bits.
#pragma once

#include "holon/kernels/cuda/launch.h"

namespace holon::kernels::cuda {

// Rows of n keys sorted by their low `bits` bits, stable. `given` [rows, n] is overwritten. places [rows, n]: where in
// `given` the j-th key of the row was. keys: in that order, if there is one row, else nullptr. K: uint32_t or uint64_t.
// Pre: rows * n < 2^32.
template <class K>
struct RowOrder {
  const K* keys;
  const uint32_t* places;
  Scratch keys_memory, places_memory;
};
template <class K>
RowOrder<K> order_rows_by_bits(K* given, int64_t rows, int64_t n, int bits);
extern template RowOrder<uint32_t> order_rows_by_bits(uint32_t*, int64_t, int64_t, int);
extern template RowOrder<uint64_t> order_rows_by_bits(uint64_t*, int64_t, int64_t, int);

// The bits of numbers from 0 to `most`.
inline int bits_of(uint64_t most) {
  int bits = 1;
  while (bits < 64 && most >> bits) ++bits;
  return bits;
}

}  // namespace holon::kernels::cuda
