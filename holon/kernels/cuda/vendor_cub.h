// Sorting, selection and sums of integers by a library: CUB on devices (vendor_cub.cu), loops in the emulator. Each call
// puts its work on the current stream (stream.h), takes its workspace from the device's allocator, does not wait on the
// host, and has one possible result.
#pragma once

#include <cstdint>

namespace holon::kernels::cuda {

// Two buffers of the same size. A call reads `current`, overwrites both, and sets `current` to that with its result.
template <class T>
struct Buffers {
  T* current;
  T* other;
};

// Sorts pairs of a key and a value by the low `bits` bits of the keys; equal ones stay in order. 0 < count < 2^32.
void sort_pairs(Buffers<uint32_t>& keys, Buffers<uint32_t>& values, int64_t count, int bits);
void sort_pairs(Buffers<uint64_t>& keys, Buffers<uint32_t>& values, int64_t count, int bits);

}  // namespace holon::kernels::cuda
