// Starting kernels, and what they are written with. The same source is compiled by nvcc for devices and by the host's
// compiler for the emulator of the tests (tests/cuda/emulator), so it uses no <<<>>> and no vendor's extras that the
// emulator does not have.
#pragma once

#include <algorithm>

#include "holon/kernels/cuda/stream.h"

#ifdef HOLON_EMULATED
#include "emulator.h"
#else
#define HOLON_SHARED(type, name, count) __shared__ type name[count]
#endif

namespace holon::kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A&&... args) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  // Above 48 KiB a kernel must ask for it, what it declares itself (at most 32 KiB) included.
  if (shared_bytes > 16 * 1024) allow_shared_bytes(reinterpret_cast<const void*>(kernel), shared_bytes);
#ifdef HOLON_EMULATED
  emulator::launch(kernel, grid, block, shared_bytes, stream(), static_cast<P>(args)...);
#else
  // clang-format off
  kernel<<<grid, block, shared_bytes, stream()>>>(static_cast<P>(args)...);
  // clang-format on
#endif
  check(cudaGetLastError(), "kernel launch");
}

// Blocks of a grid-stride loop over n items: enough to fill the device, no more.
inline unsigned blocks_for(int64_t n, int64_t per_block) {
  const int64_t most = int64_t{32} * multiprocessors();
  return static_cast<unsigned>(std::clamp<int64_t>((n + per_block - 1) / per_block, n > 0 ? 1 : 0, most));
}

// The block's dynamic shared memory.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
#ifdef HOLON_EMULATED
  return static_cast<T*>(emulator::dynamic_shared());
#else
  extern __shared__ __align__(16) unsigned char holon_dynamic_shared[];
  return reinterpret_cast<T*>(holon_dynamic_shared);
#endif
}

template <class T, class F>
__device__ __forceinline__ T warp_reduce(T v, F combine) {
#pragma unroll
  for (int o = kWarp / 2; o > 0; o /= 2) v = combine(v, __shfl_xor_sync(kAllLanes, v, o));
  return v;
}

// The combined value of all threads, on every one of them. Pre: blockDim.x is a multiple of 32, at most 1024, and the
// block has no other axes; all threads call it. `empty`: what combines to nothing.
template <class T, class F>
__device__ T block_reduce(T v, T empty, F combine) {
  HOLON_SHARED(T, of_warps, kWarp);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  v = warp_reduce(v, combine);
  __syncthreads();  // of_warps may still be read for an earlier value
  if (lane == 0) of_warps[warp] = v;
  __syncthreads();
  v = lane < static_cast<int>(blockDim.x) / kWarp ? of_warps[lane] : empty;
  return warp_reduce(v, combine);
}

struct Add {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN wins.
struct Max {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Min {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return (a < b) | (a != a) ? a : b;
  }
};

}  // namespace holon::kernels::cuda
