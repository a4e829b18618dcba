// The device-wide algorithms of CUB, which comes with the toolkit. All of its templates are instantiated here, as they
// take long to compile.
#include "holon/kernels/cuda/vendor_cub.h"

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/device/device_select.cuh>

#include "holon/kernels/cuda/stream.h"

namespace holon::kernels::cuda {
namespace {

// Without memory, CUB's calls return how much they need.
template <class Call>
void run(const char* name, Call call) {
  size_t bytes = 0;
  check(call(nullptr, bytes), name);
  const Scratch workspace(bytes);
  check(call(workspace.data<void>(), bytes), name);
}

template <class K>
void sort(Buffers<K>& keys, Buffers<uint32_t>& values, int64_t count, int bits) {
  cub::DoubleBuffer<K> k(keys.current, keys.other);
  cub::DoubleBuffer<uint32_t> v(values.current, values.other);
  run("cub::DeviceRadixSort::SortPairs", [&](void* workspace, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(workspace, bytes, k, v, static_cast<uint32_t>(count), 0, bits, stream());
  });
  keys = {k.Current(), k.Alternate()};
  values = {v.Current(), v.Alternate()};
}

struct Widened {
  __host__ __device__ int64_t operator()(uint8_t flag) const { return flag; }
};

}  // namespace

void sort_pairs(Buffers<uint32_t>& keys, Buffers<uint32_t>& values, int64_t count, int bits) {
  sort(keys, values, count, bits);
}
void sort_pairs(Buffers<uint64_t>& keys, Buffers<uint32_t>& values, int64_t count, int bits) {
  sort(keys, values, count, bits);
}

void select_flagged(const uint8_t* flags, int64_t count, uint32_t* positions, int64_t* found) {
  run("cub::DeviceSelect::Flagged", [&](void* workspace, size_t& bytes) {
    return cub::DeviceSelect::Flagged(workspace, bytes, thrust::counting_iterator<uint32_t>(0), flags, positions, found,
                                      static_cast<int>(count), stream());
  });
}

void sum_flags(const uint8_t* flags, int64_t count, int64_t* sums) {
  // CUB adds up in the type that it reads.
  const auto wide = thrust::make_transform_iterator(flags, Widened{});
  run("cub::DeviceScan::InclusiveSum", [&](void* workspace, size_t& bytes) {
    return cub::DeviceScan::InclusiveSum(workspace, bytes, wide, sums, count, stream());
  });
}

}  // namespace holon::kernels::cuda
