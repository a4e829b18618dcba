// A radix sort, least significant digit first, of 8 bits a pass: counts of the digits in each tile, their sums, and
// every tile puts its pairs in order in shared memory before it writes them out in runs. Ranks within a warp come from
// ballots, as in Merrill and Grimshaw, "High performance and scalable radix sorting" (2011).
#include "holon/kernels/cuda/order.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kItems = 16, kTile = kThreads * kItems;
constexpr int kDigits = 256;  // a thread for each

template <class K>
__device__ __forceinline__ unsigned digit_of(K key, int shift) {
  return static_cast<unsigned>(key >> shift) & (kDigits - 1);
}

// counts [rows, digits, tiles]
template <class K>
__global__ void __launch_bounds__(kThreads) count_digits(const K* keys, int64_t n, int shift, uint32_t* counts) {
  HOLON_SHARED(uint32_t, of_digit, kDigits);
  of_digit[threadIdx.x] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * int64_t{kTile}, end = begin + kTile < n ? begin + kTile : n;
  const K* row = keys + blockIdx.y * n;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) atomicAdd(&of_digit[digit_of(row[i], shift)], 1u);
  __syncthreads();
  counts[(blockIdx.y * int64_t{kDigits} + threadIdx.x) * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

// For each row and digit: counts become sums over the tiles before; totals [rows, digits].
__global__ void __launch_bounds__(kThreads) sum_counts(uint32_t* counts, int64_t tiles, uint32_t* totals) {
  const int64_t which = blockIdx.y * int64_t{kDigits} + blockIdx.x;
  uint32_t* row = counts + which * tiles;
  uint32_t sum = 0;
  for (int64_t first = 0; first < tiles; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    uint32_t all;
    const uint32_t before = block_exclusive_sum(i < tiles ? row[i] : 0u, &all);
    if (i < tiles) row[i] = sum + before;
    sum += all;
  }
  if (threadIdx.x == 0) totals[which] = sum;
}

template <class K>
__global__ void __launch_bounds__(kThreads)
    move_pairs(const K* keys, const uint32_t* places, K* keys_to, uint32_t* places_to, int64_t n, int shift,
               const uint32_t* counts, const uint32_t* totals, bool first) {
  HOLON_SHARED(uint32_t, of_warp,
               kWarps * kDigits);              // how many of a digit the warp has seen, then those of the warps before
  HOLON_SHARED(uint32_t, start, kDigits);      // of a digit in the tile
  HOLON_SHARED(uint32_t, out_start, kDigits);  // what takes a number in the tile to its place in the row
  K* tile_keys = dynamic_shared<K>();
  uint32_t* tile_places = reinterpret_cast<uint32_t*>(tile_keys + kTile);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t begin = blockIdx.x * int64_t{kTile}, row = blockIdx.y;
  const int count = static_cast<int>(n - begin < kTile ? n - begin : kTile);
  keys += row * n;
  places += row * n;
  keys_to += row * n;
  places_to += row * n;
  for (int i = threadIdx.x; i < kWarps * kDigits; i += kThreads) of_warp[i] = 0;
  __syncthreads();
  K key[kItems];
  uint32_t rank[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int at = warp * kWarp * kItems + j * kWarp + lane;
    // What lies behind the end counts as the last digit, and comes after all that has it.
    key[j] = at < count ? keys[begin + at] : ~K(0);
    const unsigned digit = digit_of(key[j], shift);
    unsigned alike = kAllLanes;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const unsigned with = __ballot_sync(kAllLanes, digit >> b & 1);
      alike &= digit >> b & 1 ? with : ~with;
    }
    const uint32_t seen = of_warp[warp * kDigits + digit];
    const int before = __popc(alike & ((1u << lane) - 1));
    rank[j] = seen + before;
    __syncwarp();
    if (before == 0) of_warp[warp * kDigits + digit] = seen + __popc(alike);
    __syncwarp();
  }
  __syncthreads();
  uint32_t sum = 0, all;
  for (int w = 0; w < kWarps; ++w) {
    const uint32_t c = of_warp[w * kDigits + threadIdx.x];
    of_warp[w * kDigits + threadIdx.x] = sum;
    sum += c;
  }
  const uint32_t in_tile = block_exclusive_sum(sum, &all);
  const uint32_t in_row = block_exclusive_sum(totals[row * kDigits + threadIdx.x], &all);
  start[threadIdx.x] = in_tile;
  out_start[threadIdx.x] = in_row + counts[(row * kDigits + threadIdx.x) * gridDim.x + blockIdx.x] - in_tile;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const unsigned digit = digit_of(key[j], shift);
    const uint32_t to = start[digit] + of_warp[warp * kDigits + digit] + rank[j];
    const int at = warp * kWarp * kItems + j * kWarp + lane;
    tile_keys[to] = key[j];
    if (at < count) tile_places[to] = first ? static_cast<uint32_t>(begin + at) : places[begin + at];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const K k = tile_keys[i];
    const uint32_t to = out_start[digit_of(k, shift)] + static_cast<uint32_t>(i);
    keys_to[to] = k;
    places_to[to] = tile_places[i];
  }
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
    places_to[row * n + j] = e[i].place_of();
  }
}

}  // namespace

template <class K>
RowOrder<K> order_rows_by_bits(K* keys, int64_t rows, int64_t n, int bits) {
  const auto total = static_cast<size_t>(rows * n);
  RowOrder<K> out{nullptr, nullptr, Scratch(total * sizeof(K)), Scratch(total * 2 * sizeof(uint32_t))};
  K* other_keys = out.keys_memory.template data<K>();
  uint32_t *places = out.places_memory.template data<uint32_t>(), *other_places = places + total;
  if (total == 0) return out;
  if (n <= Entry<K>::kMost) {
    int padded = 2;
    while (padded < n) padded *= 2;
    const int size = std::max(padded, 512), rows_per_block = size / padded;
    launch(order_small<K>, dim3(static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block)),
           dim3(static_cast<unsigned>(std::min(size / 2, 1024))), size * sizeof(Entry<K>), keys, rows,
           static_cast<int>(n), padded, size, other_keys, places);
    out.keys = other_keys;
    out.places = places;
    return out;
  }
  const int64_t tiles = (n + kTile - 1) / kTile, most_rows = std::min<int64_t>(rows, 65535);
  const Scratch counts(static_cast<size_t>(most_rows * kDigits * tiles) * sizeof(uint32_t)),
      totals(static_cast<size_t>(most_rows * kDigits) * sizeof(uint32_t));
  bool first = true;
  for (int shift = 0; shift < bits; shift += 8) {
    for (int64_t r = 0; r < rows; r += most_rows) {
      const auto here = static_cast<unsigned>(std::min(rows - r, most_rows));
      const dim3 grid(static_cast<unsigned>(tiles), here);
      launch(count_digits<K>, grid, kThreads, 0, keys + r * n, n, shift, counts.data<uint32_t>());
      launch(sum_counts, dim3(kDigits, here), kThreads, 0, counts.data<uint32_t>(), tiles, totals.data<uint32_t>());
      launch(move_pairs<K>, grid, kThreads, kTile * (sizeof(K) + sizeof(uint32_t)), keys + r * n, places + r * n,
             other_keys + r * n, other_places + r * n, n, shift, counts.data<uint32_t>(), totals.data<uint32_t>(),
             first);
    }
    std::swap(keys, other_keys);
    std::swap(places, other_places);
    first = false;
  }
  out.keys = keys;
  out.places = places;
  return out;
}
template RowOrder<uint32_t> order_rows_by_bits(uint32_t*, int64_t, int64_t, int);
template RowOrder<uint64_t> order_rows_by_bits(uint64_t*, int64_t, int64_t, int);

}  // namespace holon::kernels::cuda
