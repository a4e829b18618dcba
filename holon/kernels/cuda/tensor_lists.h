// Many tensors in one launch. Tensors are cut into chunks; a launch takes a table of some of them as its parameter, and
// its blocks stride over all of their chunks.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "holon/array/array.h"
#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/update_rules.h"

namespace holon::kernels::cuda::lists {

namespace rules = HOLON_ISA::rules;

constexpr int kThreads = 256, kLane = 4;  // elements that a thread takes at a time
constexpr int kArrays = 6;                // parameter, gradient, states, rounded
constexpr int kItems = 43;                // tables are passed as kernel parameters, which have 4 KiB
constexpr int64_t kUpdateChunk = 4096, kNormChunk = 16384;

enum class Kind : uint8_t { kPlain, kFloat16, kBFloat16 };  // kPlain: the type computed in

struct Item {
  void* a[kArrays];  // null where there is none
  int64_t n;
  double lr, scale;     // what differs between tensors of one step, for LAMB and LARS
  const double* ratio;  // in memory, instead: of LAMB's lr, LARS' scale; null: none
  Kind kind[kArrays];
  bool packed;  // addresses allow kLane elements at a time
};
struct Table {
  int items;
  uint32_t first[kItems + 1];  // chunk of each item; the last is their number
  Item item[kItems];
};
static_assert(sizeof(Table) + 128 <= 4096);

// That of the parameter, whatever the gradient is stored in: of its rounded copy, if it has one.
__device__ __forceinline__ Kind gradient_kind(const Item& item) {
  return item.kind[item.a[kArrays - 1] ? kArrays - 1 : 0];
}

__device__ __forceinline__ int item_of(const Table& table, uint32_t chunk) {
  int low = 0, high = table.items;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first[middle] <= chunk ? low : high) = middle;
  }
  return low;
}

// Stored elements as they are, to be converted when all loads are under way.
template <class T>
struct Stored {
  Pack<T, 2> half[kLane / 2];
};

template <class T>
__device__ __forceinline__ Stored<T> load(const void* p, Kind kind, int64_t i) {
  Stored<T> s;
  if constexpr (sizeof(T) == 8) {
    s.half[0] = reinterpret_cast<const Pack<T, 2>*>(static_cast<const T*>(p) + i)[0];
    s.half[1] = reinterpret_cast<const Pack<T, 2>*>(static_cast<const T*>(p) + i)[1];
  } else if (kind == Kind::kPlain) {
    const auto all = *reinterpret_cast<const Pack<T, kLane>*>(static_cast<const T*>(p) + i);
    s = {{{{all.v[0], all.v[1]}}, {{all.v[2], all.v[3]}}}};
  } else {
    const auto two = *reinterpret_cast<const Pack<T, 2>*>(static_cast<const uint16_t*>(p) + i);
    s.half[0] = s.half[1] = two;
  }
  return s;
}

template <class T>
__device__ __forceinline__ T number(uint16_t bits, Kind kind) {
  if (kind == Kind::kFloat16) {
    Float16 h;
    h.bits = bits;
    return static_cast<T>(widen(h));
  }
  BFloat16 b;
  b.bits = bits;
  return static_cast<T>(widen(b));
}
template <class T>
__device__ __forceinline__ uint16_t rounded(T x, Kind kind) {
  return kind == Kind::kFloat16 ? narrow<Float16>(static_cast<float>(x)).bits
                                : narrow<BFloat16>(static_cast<float>(x)).bits;
}

// x as it would be read again after it was stored.
template <class T>
__device__ __forceinline__ T as_stored(T x, Kind kind) {
  return kind == Kind::kPlain ? x : number<T>(rounded(x, kind), kind);
}

template <class T>
__device__ __forceinline__ void numbers(const Stored<T>& s, Kind kind, T* to) {
  if (sizeof(T) == 8 || kind == Kind::kPlain) {
#pragma unroll
    for (int k = 0; k < kLane; ++k) to[k] = s.half[k / 2].v[k % 2];
    return;
  }
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int k = 0; k < kLane; ++k)
      to[k] = number<T>(static_cast<uint16_t>(__float_as_uint(s.half[0].v[k / 2]) >> (k % 2 * 16)), kind);
  }
}

template <class T>
__device__ __forceinline__ void store(void* p, Kind kind, int64_t i, const T* from) {
  if (kind == Kind::kPlain) {
    T* to = static_cast<T*>(p) + i;
    if constexpr (sizeof(T) == 8) {
      reinterpret_cast<Pack<T, 2>*>(to)[0] = {{from[0], from[1]}};
      reinterpret_cast<Pack<T, 2>*>(to)[1] = {{from[2], from[3]}};
    } else {
      *reinterpret_cast<Pack<T, kLane>*>(to) = {{from[0], from[1], from[2], from[3]}};
    }
    return;
  }
  Pack<uint16_t, kLane> out;
#pragma unroll
  for (int k = 0; k < kLane; ++k) out.v[k] = rounded(from[k], kind);
  *reinterpret_cast<Pack<uint16_t, kLane>*>(static_cast<uint16_t*>(p) + i) = out;
}

template <class T>
__device__ __forceinline__ T load_one(const void* p, Kind kind, int64_t i) {
  return kind == Kind::kPlain ? static_cast<const T*>(p)[i] : number<T>(static_cast<const uint16_t*>(p)[i], kind);
}
template <class T>
__device__ __forceinline__ void store_one(void* p, Kind kind, int64_t i, T x) {
  if (kind == Kind::kPlain)
    static_cast<T*>(p)[i] = x;
  else
    static_cast<uint16_t*>(p)[i] = rounded(x, kind);
}

// Calls step(values of arrays, x[k] being array k's) for this thread's elements of [begin, end) of an item; reads the
// arrays that `read` names and then writes those that `written` names. begin is a multiple of kLane.
template <class T, int kFirst, class F>
__device__ __forceinline__ void walk(const Item& item, uint32_t read, uint32_t written, int64_t begin, int64_t end,
                                     F&& step) {
  int64_t single = begin;
  if (item.packed) {
    single = begin + (end - begin) / kLane * kLane;
    for (int64_t i = begin + static_cast<int64_t>(threadIdx.x) * kLane; i < single; i += kThreads * kLane) {
      Stored<T> stored[kFirst];
      T x[kFirst][kLane];
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (read >> k & 1) stored[k] = load<T>(item.a[k], item.kind[k], i);
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (read >> k & 1) numbers(stored[k], item.kind[k], x[k]);
#pragma unroll
      for (int e = 0; e < kLane; ++e) {
        T one[kFirst];
#pragma unroll
        for (int k = 0; k < kFirst; ++k) one[k] = read >> k & 1 ? x[k][e] : T(0);
        step(one);
#pragma unroll
        for (int k = 0; k < kFirst; ++k) x[k][e] = one[k];
      }
#pragma unroll
      for (int k = 0; k < kFirst; ++k)
        if (written >> k & 1) store(item.a[k], item.kind[k], i, x[k]);
      if constexpr (kFirst == kArrays - 1)
        if (item.a[kArrays - 1]) store(item.a[kArrays - 1], item.kind[kArrays - 1], i, x[0]);
    }
  }
  for (int64_t i = single + threadIdx.x; i < end; i += kThreads) {
    T one[kFirst];
#pragma unroll
    for (int k = 0; k < kFirst; ++k) one[k] = read >> k & 1 ? load_one<T>(item.a[k], item.kind[k], i) : T(0);
    step(one);
#pragma unroll
    for (int k = 0; k < kFirst; ++k)
      if (written >> k & 1) store_one(item.a[k], item.kind[k], i, one[k]);
    if constexpr (kFirst == kArrays - 1)
      if (item.a[kArrays - 1]) store_one(item.a[kArrays - 1], item.kind[kArrays - 1], i, one[0]);
  }
}

// f(item, its number, first element, the one after the last, chunk) for the chunks of this block.
template <class F>
__device__ __forceinline__ void over_chunks(const Table& table, int64_t size, F&& f) {
  const uint32_t chunks = table.first[table.items];
  for (uint32_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const int k = item_of(table, chunk);
    const int64_t begin = static_cast<int64_t>(chunk - table.first[k]) * size, n = table.item[k].n;
    f(table.item[k], begin, begin + size < n ? begin + size : n, chunk);
  }
}

// parts[chunk kWidth + k]: the chunk's sums.
template <class T, class Sums>
__global__ void __launch_bounds__(kThreads)
    sums_of_chunks(Table table, Sums given, double* parts, const double* scale, const UpdateNumbers* there) {
  Sums sums = given;
  if constexpr (requires { Sums(*there); })
    if (there) sums = Sums(*there);
  const T by = scale ? static_cast<T>(*scale) : T(1);
  over_chunks(table, kNormChunk, [&](const Item& item, int64_t begin, int64_t end, uint32_t chunk) {
    T found[Sums::kWidth];
#pragma unroll
    for (int k = 0; k < Sums::kWidth; ++k) found[k] = static_cast<T>(Sums::nothing());
    walk<T, Sums::kFirst>(item, (1u << Sums::kFirst) - 1, Sums::kWritten, begin, end, [&](T* x) {
      if constexpr (Sums::kFirst > 1)
        if (scale) x[1] = as_stored(x[1] * by, gradient_kind(item));
      sums(x, found);
    });
#pragma unroll
    for (int k = 0; k < Sums::kWidth; ++k) {
      const double all = block_reduce(static_cast<double>(found[k]), Sums::nothing(), typename Sums::Combine());
      if (threadIdx.x == 0) parts[static_cast<int64_t>(chunk) * Sums::kWidth + k] = all;
    }
  });
}

// to[item kWidth + k]: the sums of an item, a block for each.
template <class Sums>
__global__ void __launch_bounds__(kThreads) sums_of_items(Table table, const double* parts, double* to) {
  const uint32_t begin = table.first[blockIdx.x], end = table.first[blockIdx.x + 1];
  const typename Sums::Combine combine;
#pragma unroll
  for (int k = 0; k < Sums::kWidth; ++k) {
    double all = Sums::nothing();
    for (uint32_t c = begin + threadIdx.x; c < end; c += kThreads)
      all = combine(all, parts[static_cast<int64_t>(c) * Sums::kWidth + k]);
    all = block_reduce(all, Sums::nothing(), combine);
    if (threadIdx.x == 0) to[static_cast<int64_t>(blockIdx.x) * Sums::kWidth + k] = all;
  }
}

inline bool same_layout(const Array& a, const Dims& strides) {
  for (int i = 0; i < a.ndim(); ++i)
    if (a.shape[i] != 1 && a.strides[i] != strides[i]) return false;
  return true;
}

// Arrays that are walked through as they are. Those in another order than the first, or are of a type that kernels do
// not read, have stand-ins, which are copied back when this goes.
class Together {
 public:
  Together(std::initializer_list<const Array*> arrays, uint32_t written, const char* op) {
    const Array& first = **arrays.begin();
    if (!is_floating(first.dtype))
      fail_type("{} takes floating point tensors, found {}. Convert it first.", op, name(first.dtype));
    compute_ = first.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    const Dims layout = first.is_dense() ? first.strides : contiguous_strides(first.shape);
    item_.n = first.numel();
    item_.packed = true;
    int k = 0;
    for (const Array* a : arrays) {
      add(a, k, written >> k & 1, layout, first, op);
      ++k;
    }
  }
  Together(Together&&) = default;
  void finish() {
    for (auto& [stand_in, to] : back_) copy(stand_in, to);
  }
  bool stands_in() const { return !kept_.empty(); }
  const Item& item() const { return item_; }
  DType compute() const { return compute_; }

 private:
  void add(const Array* given, int k, bool written, const Dims& strides, const Array& first, const char* op) {
    item_.a[k] = nullptr;
    item_.kind[k] = Kind::kPlain;
    if (!given || !given->defined()) return;
    HOLON_CHECK(given->shape == first.shape && is_floating(given->dtype),
                "{}: a parameter of shape {} with a {} of shape {}", op, first.shape, name(given->dtype), given->shape);
    Array a = *given;
    const bool read = a.dtype == compute_ || (compute_ == DType::kFloat32 && size_bytes(a.dtype) == 2);
    if (!read || !same_layout(a, strides)) {
      a = Array::empty_strided(a.shape, strides, read ? a.dtype : compute_, a.device);
      copy(*given, a);
      if (written) back_.emplace_back(a, *given);
      kept_.push_back(a);
    }
    item_.a[k] = a.bytes();
    item_.kind[k] = a.dtype == DType::kFloat16 ? Kind::kFloat16
        : a.dtype == DType::kBFloat16          ? Kind::kBFloat16
                                               : Kind::kPlain;
    item_.packed =
        item_.packed && reinterpret_cast<uintptr_t>(a.bytes()) % std::min<size_t>(16, kLane * size_bytes(a.dtype)) == 0;
  }

  Item item_{};
  DType compute_ = DType::kFloat32;
  std::vector<std::pair<Array, Array>> back_;
  std::vector<Array> kept_;
};

// f(table, first item) for the items [begin, end), as many at a time as a table holds.
template <class Items, class F>
void over_tables(const Items& all, size_t begin, size_t end, int64_t chunk, F&& f) {
  auto table = std::make_unique<Table>();
  while (begin < end) {
    table->items = static_cast<int>(std::min<size_t>(end - begin, kItems));
    int64_t chunks = 0;
    for (int k = 0; k < table->items; ++k) {
      table->item[k] = all[begin + static_cast<size_t>(k)].item();
      table->first[k] = static_cast<uint32_t>(chunks);
      chunks += (table->item[k].n + chunk - 1) / chunk;
    }
    HOLON_CHECK(chunks < (int64_t{1} << 32), "tensors of more elements than are counted");
    table->first[table->items] = static_cast<uint32_t>(chunks);
    f(*table, begin);
    begin += static_cast<size_t>(table->items);
  }
}

template <class F>
void visit_compute(DType compute, F&& f) {
  compute == DType::kFloat64 ? f(double{}) : f(float{});
}

// to[item kWidth + k] for the items [begin, end), in the device's memory. scale: as UpdateTensor::gradient_scale, of
// the gradients (array 1).
template <class T, class Sums, class Items>
void launch_sums(const Items& all, size_t begin, size_t end, const Sums& sums, double* to,
                 const double* scale = nullptr, const UpdateNumbers* there = nullptr) {
  over_tables(all, begin, end, kNormChunk, [&](const Table& table, size_t first) {
    const uint32_t chunks = table.first[table.items];
    const Scratch parts(size_t{chunks} * Sums::kWidth * sizeof(double));
    launch(sums_of_chunks<T, Sums>, blocks_for(chunks, 1), kThreads, 0, table, sums, parts.data<double>(), scale,
           there);
    launch(sums_of_items<Sums>, static_cast<unsigned>(table.items), kThreads, 0, table,
           static_cast<const double*>(parts.data<double>()), to + first * Sums::kWidth);
  });
}

// Runs of items that `alike` joins, each through f(compute type's zero, begin, end).
template <class Items, class Alike, class F>
void over_runs(const Items& all, Alike&& alike, F&& f) {
  for (size_t begin = 0, end; begin < all.size(); begin = end) {
    for (end = begin + 1;
         end < all.size() && all[begin].compute() == all[end].compute() && alike(all[begin], all[end]);)
      ++end;
    visit_compute(all[begin].compute(), [&](auto zero) { f(zero, begin, end); });
  }
}

}  // namespace holon::kernels::cuda::lists
