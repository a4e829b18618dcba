// Putting keys in order on a device: stable, by their bits.
#pragma once

#include "holon/kernels/cuda/launch.h"

namespace holon::kernels::cuda {

// Of all threads of a block: the sum over those before this one; *total: over all. Pre: as for block_reduce().
template <class T>
__device__ T block_exclusive_sum(T v, T* total) {
  HOLON_SHARED(T, of_warps, kWarp);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  T sum = v;
#pragma unroll
  for (int o = 1; o < kWarp; o *= 2) {
    const T before = __shfl_up_sync(kAllLanes, sum, o);
    if (lane >= o) sum += before;
  }
  __syncthreads();  // of_warps may still be read for an earlier value
  if (lane == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  T start = 0, all = 0;
  for (int w = 0; w < warps; ++w) {
    if (w == warp) start = all;
    all += of_warps[w];
  }
  *total = all;
  return start + sum - v;
}

// Rows of n keys sorted by their low `bits` bits, stable. keys [rows, n] is overwritten. places [rows, n]: where in it
// the j-th key of the row was; `keys` in that order if there is one row, else nullptr. K: uint32_t or uint64_t; rows *
// n < 2^32.
template <class K>
struct RowOrder {
  const K* keys;
  const uint32_t* places;
  Scratch keys_memory, places_memory;
};
template <class K>
RowOrder<K> order_rows_by_bits(K* keys, int64_t rows, int64_t n, int bits);
extern template RowOrder<uint32_t> order_rows_by_bits(uint32_t*, int64_t, int64_t, int);
extern template RowOrder<uint64_t> order_rows_by_bits(uint64_t*, int64_t, int64_t, int);

// The bits of numbers from 0 to `most`.
inline int bits_of(uint64_t most) {
  int bits = 1;
  while (bits < 64 && most >> bits) ++bits;
  return bits;
}

}  // namespace holon::kernels::cuda
