// Rows of arrays in device code: groups of threads that share a row each, keep its elements in registers and fold them.
// Kernels are made for the type that is computed in; how the elements are stored is looked up when they are loaded.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "holon/kernels/cuda/launch.h"
#include "holon/kernels/cuda/strides.h"
#include "holon/kernels/cuda/types.h"

namespace holon::kernels::cuda {

// What is computed with numbers that are 0 or 1 for what is not 0.
struct Truth {};

// f(TypeTag<T>) with a dtype that rows computed in C may have: floats up to C, integers for int64, all of them for
// Truth.
template <class C, class F>
__device__ __forceinline__ void visit_stored(DType dtype, F&& f) {
  if constexpr (std::is_same_v<C, Truth>)
    with_type_of(AllTypes{}, dtype, static_cast<F&&>(f));
  else if constexpr (std::is_same_v<C, int64_t>)
    with_type_of(IntTypes{}, dtype, static_cast<F&&>(f));
  else if constexpr (std::is_same_v<C, double>)
    with_type_of(FloatTypes{}, dtype, static_cast<F&&>(f));
  else
    with_stored<C>(dtype, static_cast<F&&>(f));
}

template <class C>
struct ValueOf {
  using type = C;
};
template <>
struct ValueOf<Truth> {
  using type = int64_t;
};
template <class C>
using Value = typename ValueOf<C>::type;

template <class C, class T>
__device__ __forceinline__ Value<C> value_of(T x) {
  if constexpr (std::is_same_v<C, Truth>)
    return widen(x) != Compute<T>(0);
  else
    return static_cast<C>(widen(x));
}

// An array as a kernel sees it: elements `step` apart along its rows. No data: it is not there.
struct RowArray {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t step = 1;

  RowArray() = default;
  RowArray(const Array& a, int64_t step) : data(a.defined() ? a.bytes() : nullptr), dtype(a.dtype), step(step) {}
};

template <class C>
__device__ __forceinline__ C load_one(const RowArray& a, int64_t at) {
  C v{};
  visit_stored<C>(a.dtype,
                  [&](auto tag) { v = value_of<C>(static_cast<const typename decltype(tag)::type*>(a.data)[at]); });
  return v;
}
template <class C>
__device__ __forceinline__ void store_one(const RowArray& a, int64_t at, C v) {
  visit_stored<C>(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    static_cast<T*>(a.data)[at] = narrow<T>(v);
  });
}
// v as it comes back after it was stored.
template <class C, int kN>
__device__ __forceinline__ void round_to(DType dtype, C (&v)[kN]) {
  visit_stored<C>(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!std::is_same_v<T, C>) {
#pragma unroll
      for (int e = 0; e < kN; ++e) v[e] = value_of<C>(narrow<T>(v[e]));
    }
  });
}

template <class T>
__device__ __forceinline__ T shuffle_xor(T v, int with) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(kAllLanes, v, with);
  } else {
    static_assert(sizeof(T) % 4 == 0);
    unsigned words[sizeof(T) / 4];
    memcpy(words, &v, sizeof v);
#pragma unroll
    for (unsigned& w : words) w = __shfl_xor_sync(kAllLanes, w, with);
    memcpy(&v, words, sizeof v);
    return v;
  }
}

// The threads of a block in groups of `size`, a power of two. By rows: a group's threads are neighbours, along the
// memory of a row. By columns: neighbouring threads belong to 32 groups, whose rows are next to each other.
struct Group {
  int size, count;  // threads of a group, groups of the block
  int rank, index;  // this thread's place in its group, this group's place in the block
  bool columns;

  __device__ __forceinline__ Group(int threads_of_group, bool by_columns)
      : size(threads_of_group), columns(by_columns) {
    const int t = static_cast<int>(threadIdx.x);
    count = static_cast<int>(blockDim.x) / size;
    rank = by_columns ? t / kWarp : t % size;
    index = by_columns ? t % kWarp : t / size;
  }

  // The combined value of the group's threads, the same on each. All threads of the block call it.
  template <class T, class F>
  __device__ __forceinline__ T reduce(T v, F combine) const {
    if (size == 1) return v;
    if (columns) return across_warps(v, combine);
    const int lanes = size < kWarp ? size : kWarp;
    for (int o = lanes / 2; o > 0; o /= 2) v = combine(v, shuffle_xor(v, o));
    if (size <= kWarp) return v;
    HOLON_SHARED(T, of_warps, kWarp);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp,
              warps = size / kWarp;
    __syncthreads();  // of_warps may still be read for an earlier value
    if (lane == 0) of_warps[warp] = v;
    __syncthreads();
    v = of_warps[index * warps + (lane & (warps - 1))];
    for (int o = warps / 2; o > 0; o /= 2) v = combine(v, shuffle_xor(v, o));
    return v;
  }

 private:
  // Blocks by columns have 256 threads at most.
  template <class T, class F>
  __device__ __forceinline__ T across_warps(T v, F combine) const {
    HOLON_SHARED(T, all, 256);
    __syncthreads();
    all[threadIdx.x] = v;
    __syncthreads();
    v = all[index];
    for (int r = 1; r < size; ++r) v = combine(v, all[r * kWarp + index]);
    return v;
  }
};

// Elements of a row that are loaded and stored as one where its memory allows it.
constexpr int kUnit = 4;

// kN elements of a row in the registers of each thread of a group: those of the part from `first` on. Element e of a
// thread is offset(e) behind begin(), the first one of the thread. kUnits: in whole units (RowSet::units).
template <int kN, bool kUnits>
struct Part {
  int64_t first;
  int size, rank;

  __device__ __forceinline__ Part(const Group& g, int64_t first) : first(first), size(g.size), rank(g.rank) {
    // Else the addresses of all arrays, for all dtypes, are worked out before the loop over the rows, and spilled.
    asm volatile("" : "+r"(rank));
  }
  __device__ __forceinline__ int64_t begin() const { return first + (kUnits ? rank * kUnit : rank); }
  __device__ __forceinline__ int offset(int e) const {
    return kUnits ? e / kUnit * kUnit * size + e % kUnit : e * size;
  }
  // Elements e with offset(e) < limit(n) are before place n of the row.
  __device__ __forceinline__ int limit(int64_t n) const {
    const int64_t left = n - begin();
    return left < 0 ? 0 : left > 0x7fffffff ? 0x7fffffff : static_cast<int>(left);
  }

  // From a's row that begins at element `at`; elements from end = limit(n) on become `none`.
  template <class C>
  __device__ __forceinline__ void load(C (&v)[kN], const RowArray& a, int64_t at, int end, C none) const {
    visit_stored<C>(a.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (kUnits) {
        const auto* p = reinterpret_cast<const Pack<T, kUnit>*>(static_cast<const T*>(a.data) + at + begin());
        Pack<T, kUnit> packs[kN / kUnit];
#pragma unroll
        for (int u = 0; u < kN / kUnit; ++u)
          if (u * kUnit * size < end) packs[u] = p[u * size];
            // Units are whole: they are before n or behind it.
#pragma unroll
        for (int e = 0; e < kN; ++e)
          v[e] = e / kUnit * kUnit * size < end ? value_of<C>(packs[e / kUnit].v[e % kUnit]) : none;
      } else {
        const T* p = static_cast<const T*>(a.data) + at + begin() * a.step;
        const int64_t step = size * a.step;
        T single[kN];
#pragma unroll
        for (int e = 0; e < kN; ++e, p += step)
          if (e * size < end) single[e] = *p;
#pragma unroll
        for (int e = 0; e < kN; ++e) v[e] = e * size < end ? value_of<C>(single[e]) : none;
      }
    });
  }
  // take(e, value) with the same elements but those from `end` on: they are held no longer than that.
  template <class C, class F>
  __device__ __forceinline__ void each(const RowArray& a, int64_t at, int end, F&& take) const {
    visit_stored<C>(a.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (kUnits) {
        const auto* p = reinterpret_cast<const Pack<T, kUnit>*>(static_cast<const T*>(a.data) + at + begin());
#pragma unroll
        for (int u = 0; u < kN / kUnit; ++u) {
          if (u * kUnit * size >= end) continue;
          const Pack<T, kUnit> pack = p[u * size];
#pragma unroll
          for (int k = 0; k < kUnit; ++k) take(u * kUnit + k, value_of<C>(pack.v[k]));
        }
      } else {
        const T* p = static_cast<const T*>(a.data) + at + begin() * a.step;
        const int64_t step = size * a.step;
#pragma unroll
        for (int e = 0; e < kN; ++e, p += step)
          if (e * size < end) take(e, value_of<C>(*p));
      }
    });
  }
  template <class C>
  __device__ __forceinline__ void store(const C (&v)[kN], const RowArray& a, int64_t at, int end) const {
    visit_stored<C>(a.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (kUnits) {
        auto* p = reinterpret_cast<Pack<T, kUnit>*>(static_cast<T*>(a.data) + at + begin());
#pragma unroll
        for (int u = 0; u < kN / kUnit; ++u) {
          Pack<T, kUnit> pack;
#pragma unroll
          for (int k = 0; k < kUnit; ++k) pack.v[k] = narrow<T>(v[u * kUnit + k]);
          if (u * kUnit * size < end) p[u * size] = pack;
        }
      } else {
        T* p = static_cast<T*>(a.data) + at + begin() * a.step;
        const int64_t step = size * a.step;
#pragma unroll
        for (int e = 0; e < kN; ++e, p += step)
          if (e * size < end) *p = narrow<T>(v[e]);
      }
    });
  }
};

// The registers that leave room for two of the largest blocks on a multiprocessor: reading and computing overlap.
template <class C>
inline constexpr int kRowBlocks = sizeof(C) == 8 ? 1 : 2;

// The rows of kArrays arrays of one shape.
template <int kArrays>
struct RowSet {
  Strided<kArrays> rows;
  int64_t length = 1;
  RowArray array[kArrays];
  bool units = true;     // rows are of whole units, as such in every array
  bool columns = false;  // rows are next to each other rather than along memory
  int group = 1;         // threads for a row

  // Rows along the axes [axis, axis + axes), which must be a single row of equal steps in each array (with_rows()).
  // in_order: rows are numbered in row-major order; otherwise in that of memory.
  RowSet(const Array* const (&arrays)[kArrays], int axis, int axes, bool in_order) {
    const Dims& shape = arrays[0]->shape;
    SmallAxes others;
    for (int k = 0; k < kArrays; ++k) array[k] = RowArray(*arrays[k], 1);
    for (int i = 0; i < shape.size(); ++i) {
      if (i < axis || i >= axis + axes) {
        others.list[others.n++] = i;
        continue;
      }
      length *= shape[i];
      if (shape[i] != 1)
        for (int k = 0; k < kArrays; ++k) array[k].step = arrays[k]->strides[i];
    }
    if (!in_order)
      std::stable_sort(others.list, others.list + others.n,
                       [&](int i, int j) { return arrays[0]->strides[i] > arrays[0]->strides[j]; });
    Dims sizes, strides[kArrays];
    int last = -1;
    for (int o = 0; o < others.n; ++o) {
      const int i = others.list[o];
      sizes.push_back(shape[i]);
      if (shape[i] != 1) last = i;
      for (int k = 0; k < kArrays; ++k) strides[k].push_back(arrays[k]->strides[i]);
    }
    rows = Strided<kArrays>(sizes, strides);
    units = length % kUnit == 0;
    for (int k = 0; k < kArrays; ++k) {
      units = units && array[k].step == 1 &&
          reinterpret_cast<uintptr_t>(array[k].data) % (size_bytes(array[k].dtype) * kUnit) == 0;
      for (int a = 0; a < rows.axes; ++a) units = units && rows.stride[a][k] % kUnit == 0;
    }
    columns = last >= 0 && length > 1 && array[0].step != 1 && arrays[0]->strides[last] == 1 && shape[last] >= 8;
  }

  // Threads for a row that keep it in `each` registers, or as many as there may be.
  void choose_group(int each, int most) {
    if (columns) most = 8;
    group = 1;
    while (group < most && int64_t{group} * each < length) group *= 2;
  }
  int threads() const { return columns ? group * kWarp : std::max(group, 256); }
  int64_t groups_of_block() const { return threads() / group; }
  unsigned blocks() const { return blocks_for(rows.count, groups_of_block()); }

 private:
  struct SmallAxes {
    int list[kMaxAxes], n = 0;
  };
};

template <class C>
constexpr C lowest() {
  return -std::numeric_limits<C>::infinity();
}

// The larger one; a NaN is passed over.
struct MaxNumber {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

}  // namespace holon::kernels::cuda
