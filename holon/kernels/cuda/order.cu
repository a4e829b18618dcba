// Short rows are sorted by a block each, long ones by the library, whose sort is stable: by their keys, then by the
// rows that these are of.
#include "holon/kernels/cuda/order.h"

#include <algorithm>

#include "holon/kernels/cuda/vendor_cub.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) number(uint32_t* places, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x)
    places[i] = static_cast<uint32_t>(i);
}

__global__ void __launch_bounds__(kThreads)
    find_rows(const uint32_t* places, uint32_t n, int64_t count, uint32_t* rows) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x)
    rows[i] = places[i] / n;
}

// A key and its place as one number, where both fit.
template <class K>
struct Entry {
  K key;
  uint32_t place;
  static constexpr int kMost = 2048;  // as many in a row take 32 KiB
  __device__ Entry(K key, uint32_t place) : key(key), place(place) {}
  __device__ __forceinline__ bool operator<(const Entry& o) const {
    return key < o.key || (key == o.key && place < o.place);
  }
  __device__ __forceinline__ K key_of() const { return key; }
  __device__ __forceinline__ uint32_t place_of() const { return place; }
};
template <>
struct Entry<uint32_t> {
  uint64_t both;
  static constexpr int kMost = 4096;
  __device__ Entry(uint32_t key, uint32_t place) : both(uint64_t{key} << 32 | place) {}
  __device__ __forceinline__ bool operator<(const Entry& o) const { return both < o.both; }
  __device__ __forceinline__ uint32_t key_of() const { return static_cast<uint32_t>(both >> 32); }
  __device__ __forceinline__ uint32_t place_of() const { return static_cast<uint32_t>(both); }
};

// A bitonic network over rows of a padded length, a power of two; `size` / `padded` rows for a block.
template <class K>
__global__ void __launch_bounds__(1024)
    order_small(const K* keys, int64_t rows, int n, int padded, int size, K* keys_to, uint32_t* places_to) {
  Entry<K>* e = dynamic_shared<Entry<K>>();
  const int64_t first_row = blockIdx.x * int64_t{size / padded};
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    const int64_t row = first_row + i / padded;
    const int j = i & (padded - 1);
    e[i] = row < rows && j < n ? Entry<K>(keys[row * n + j], static_cast<uint32_t>(j)) : Entry<K>(~K(0), ~0u);
  }
  for (int k = 2; k <= padded; k *= 2)
    for (int j = k / 2; j > 0; j /= 2) {
      __syncthreads();
      for (int t = threadIdx.x; t < size / 2; t += blockDim.x) {
        const int low = 2 * t - (t & (j - 1)), high = low + j;
        const Entry<K> a = e[low], b = e[high];
        if ((b < a) == (k == padded || (low & k) == 0)) {
          e[low] = b;
          e[high] = a;
        }
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    const int64_t row = first_row + i / padded;
    const int j = i & (padded - 1);
    if (row >= rows || j >= n) continue;
    keys_to[row * n + j] = e[i].key_of();
    places_to[row * n + j] = static_cast<uint32_t>(row * n) + e[i].place_of();
  }
}

}  // namespace

template <class K>
RowOrder<K> order_rows_by_bits(K* keys, int64_t rows, int64_t n, int bits) {
  const int64_t count = rows * n;
  RowOrder<K> out{nullptr, nullptr, Scratch(static_cast<size_t>(count) * sizeof(K)),
                  Scratch(static_cast<size_t>(count) * 2 * sizeof(uint32_t))};
  if (count == 0) return out;
  auto* other_keys = out.keys_memory.template data<K>();
  auto* memory = out.places_memory.template data<uint32_t>();
  if (n <= Entry<K>::kMost) {
    int padded = 2;
    while (padded < n) padded *= 2;
    const int size = std::max(padded, 512), rows_per_block = size / padded;
    launch(order_small<K>, dim3(static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block)),
           dim3(static_cast<unsigned>(std::min(size / 2, 1024))), size * sizeof(Entry<K>), keys, rows,
           static_cast<int>(n), padded, size, other_keys, memory);
    out.keys = other_keys;
    out.places = memory;
    return out;
  }
  Buffers<uint32_t> places{memory, memory + count};
  Buffers<K> ordered{keys, other_keys};
  const unsigned blocks = blocks_for(count, kThreads);
  launch(number, blocks, kThreads, 0, places.current, count);
  sort_pairs(ordered, places, count, bits);
  out.keys = ordered.current;
  if (rows > 1) {
    Buffers<uint32_t> row{reinterpret_cast<uint32_t*>(keys), reinterpret_cast<uint32_t*>(other_keys)};
    launch(find_rows, blocks, kThreads, 0, places.current, static_cast<uint32_t>(n), count, row.current);
    sort_pairs(row, places, count, bits_of(static_cast<uint64_t>(rows - 1)));
    out.keys = nullptr;
  }
  out.places = places.current;
  return out;
}
template RowOrder<uint32_t> order_rows_by_bits(uint32_t*, int64_t, int64_t, int);
template RowOrder<uint64_t> order_rows_by_bits(uint64_t*, int64_t, int64_t, int);

}  // namespace holon::kernels::cuda
