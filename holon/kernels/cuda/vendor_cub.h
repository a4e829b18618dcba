// Sorting, selection and sums of integers by a library: CUB on devices (vendor_cub.cu), loops in the emulator. Each
// call puts its work on the current stream (stream.h), takes its workspace from the device's allocator, does not wait
// on the host, and has one possible result.
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

// positions[k]: that of the k-th flag that is not 0, room for `count`; *found, on the device: how many there are.
// 0 < count < 2^31.
void select_flagged(const uint8_t* flags, int64_t count, uint32_t* positions, int64_t* found);
// sums[i]: of the flags up to and with flags[i]. 0 < count.
void sum_flags(const uint8_t* flags, int64_t count, int64_t* sums);

}  // namespace holon::kernels::cuda
