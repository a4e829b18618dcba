// Searching, counting, and picking out what a condition holds for.
#include "holon/kernels/search.h"

#include <algorithm>
#include <vector>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/lookup.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/cuda/vendor_cub.h"
#include "holon/kernels/index.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// x < y with NaN above all.
template <class T>
__device__ __forceinline__ bool below(T x, T y) {
  if constexpr (std::is_same_v<Compute<T>, float> || std::is_same_v<T, double>) {
    const auto p = widen(x), q = widen(y);
    return p < q || (q != q && p == p);
  } else {
    return x < y;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    search_rows(const T* sorted, int64_t n, int64_t row_step, const T* values, int64_t per_row, int64_t count,
                bool right, bool wide, void* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x) {
    const T* row = sorted + i / per_row * row_step;
    const T v = values[i];
    int64_t first = 0, left = n;
    while (left > 0) {
      const int64_t half = left / 2;
      const T e = row[first + half];
      if (right ? !below(v, e) : below(e, v)) {
        first += half + 1;
        left -= half + 1;
      } else {
        left = half;
      }
    }
    if (wide)
      static_cast<int64_t*>(out)[i] = first;
    else
      static_cast<int32_t*>(out)[i] = static_cast<int32_t>(first);
  }
}

void searchsorted(const Array& sorted_in, const Array& values_in, bool right, Array& out) {
  HOLON_CHECK(sorted_in.dtype == values_in.dtype && out.shape == values_in.shape && out.is_contiguous() &&
                  (out.dtype == DType::kInt32 || out.dtype == DType::kInt64),
              "searchsorted: {} in {} into {}", values_in.shape, sorted_in.shape, out.shape);
  if (out.numel() == 0) return;
  use_device_of(out);
  const Array sorted = contiguous(sorted_in), values = contiguous(values_in);
  const int64_t n = sorted.shape.back(), count = values.numel(),
                per_row = sorted.ndim() == 1 ? count : values.shape.back();
  visit_dtype(sorted.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    launch(search_rows<T>, blocks_for(count, kThreads), kThreads, 0, sorted.data<T>(), n,
           sorted.ndim() == 1 ? int64_t{0} : n, values.data<T>(), per_row, count, right, out.dtype == DType::kInt64,
           static_cast<void*>(out.bytes()));
  });
}

// ---- picking out: flags, their positions, and what is there to its place

// flags[i]: whether element first + i is picked.
template <class Which>
__global__ void __launch_bounds__(kThreads) set_flags(Which which, int64_t first, int64_t count, uint8_t* flags) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x)
    flags[i] = which(first + i) ? 1 : 0;
}

// totals[turn]: how many are picked in the turns up to this one.
template <class To>
__global__ void __launch_bounds__(kThreads)
    move_picked(To to, int64_t first, const uint32_t* positions, const int64_t* found, int64_t turn, int64_t* totals) {
  const int64_t before = turn > 0 ? totals[turn - 1] : 0, count = *found;
  const int64_t thread = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (thread == 0) totals[turn] = before + count;
  for (int64_t i = thread; i < count; i += int64_t{kThreads} * gridDim.x) to(first + positions[i], before + i);
}

// which(i): whether element i is picked. to(i, rank): for those, with the number of those before it.
template <class Which, class To>
void pick(const Which& which, const To& to, int64_t n) {
  // Flags and positions of one turn take 80 MiB at most.
  constexpr int64_t kTurn = int64_t{1} << 24;
  const int64_t most = std::min(n, kTurn), turns = (n + kTurn - 1) / kTurn;
  const Scratch flags(static_cast<size_t>(most)), positions(static_cast<size_t>(most) * sizeof(uint32_t)),
      counts(static_cast<size_t>(turns + 1) * sizeof(int64_t));
  auto *totals = counts.data<int64_t>(), *found = totals + turns;
  for (int64_t turn = 0; turn < turns; ++turn) {
    const int64_t first = turn * kTurn, here = std::min(n - first, kTurn);
    const unsigned blocks = blocks_for(here, kThreads);
    launch(set_flags<Which>, blocks, kThreads, 0, which, first, here, flags.data<uint8_t>());
    select_flagged(flags.data<uint8_t>(), here, positions.data<uint32_t>(), found);
    launch(move_picked<To>, blocks, kThreads, 0, to, first, positions.data<uint32_t>(), found, turn, totals);
  }
}

template <class T>
struct NotZero {
  const T* x;
  Strided<1> index;
  __device__ bool operator()(int64_t i) const { return widen(x[index.at(i).v[0]]) != Compute<T>(0); }
};

// Row `rank` of out: the indices of element i.
struct ToIndices {
  int64_t* out;
  int64_t rows, row_step, column_step;
  int axes;
  bool small;
  Divider divider[kMaxAxes];
  int64_t size[kMaxAxes];

  __device__ void operator()(int64_t i, int64_t rank) const {
    if (rank >= rows) return;
    int64_t* row = out + rank * row_step;
    for (int a = axes - 1; a >= 0; --a) {
      const int64_t q = small ? divider[a].quotient(static_cast<uint32_t>(i)) : i / size[a];
      row[a * column_step] = i - q * size[a];
      i = q;
    }
  }
};

void nonzero(const Array& x, Array& out) {
  HOLON_CHECK(out.dtype == DType::kInt64 && out.ndim() == 2 && out.shape[1] == x.ndim(), "nonzero: {} into {} {}",
              x.shape, name(out.dtype), out.shape);
  if (out.numel() == 0) return;
  use_device_of(out);
  ToIndices to{out.data<int64_t>(),
               out.shape[0],
               out.strides[0],
               out.strides[1],
               x.ndim(),
               x.numel() < (int64_t{1} << 31),
               {},
               {}};
  for (int a = 0; a < x.ndim(); ++a) {
    to.size[a] = x.shape[a];
    if (to.small) to.divider[a] = Divider(static_cast<uint32_t>(x.shape[a]));
  }
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    pick(NotZero<T>{x.data<T>(), Strided<1>(x.shape, {x.strides})}, to, x.numel());
  });
}

template <class B>
struct ToRow {
  const B* x;
  Strided<1> index;
  B* out;
  int64_t rows, step;
  __device__ void operator()(int64_t i, int64_t rank) const {
    if (rank < rows) out[rank * step] = x[index.at(i).v[0]];
  }
};

template <class F>
void visit_size(DType dtype, F&& f) {
  switch (size_bytes(dtype)) {
    case 1: return f(TypeTag<uint8_t>{});
    case 2: return f(TypeTag<uint16_t>{});
    case 4: return f(TypeTag<uint32_t>{});
    default: return f(TypeTag<uint64_t>{});
  }
}

void masked_select(const Array& x, const Array& mask, Array& out) {
  HOLON_CHECK(x.shape == mask.shape && x.dtype == out.dtype && out.ndim() == 1 && size_bytes(mask.dtype) == 1,
              "masked_select: {} by {} into {}", x.shape, mask.shape, out.shape);
  if (out.numel() == 0) return;
  use_device_of(out);
  const NotZero<uint8_t> which{mask.data<uint8_t>(), Strided<1>(mask.shape, {mask.strides})};
  visit_size(x.dtype, [&](auto tag) {
    using B = typename decltype(tag)::type;
    pick(which, ToRow<B>{x.data<B>(), Strided<1>(x.shape, {x.strides}), out.data<B>(), out.shape[0], out.strides[0]},
         x.numel());
  });
}

// ---- distinct rows

// Keys of one column in a given order of the rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_column(const T* x, int64_t width, int64_t column, const int64_t* order, int64_t n, T* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x)
    out[i] = x[(order ? order[i] : i) * width + column];
}
__global__ void __launch_bounds__(kThreads)
    follow(const int64_t* order, const int64_t* places, int64_t n, int64_t* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x)
    out[i] = order[places[i]];
}

// Whether row i of the order begins a group: a NaN equals nothing.
template <class T>
struct BeginsGroup {
  const T* x;
  int64_t width;
  const int64_t* order;
  __device__ bool operator()(int64_t i) const {
    if (i == 0) return true;
    const T *p = x + order[i] * width, *q = x + order[i - 1] * width;
    for (int64_t k = 0; k < width; ++k)
      if (!(widen(p[k]) == widen(q[k]))) return true;
    return false;
  }
};
// begun [n]: how many groups begin up to each row of the order.
__global__ void __launch_bounds__(kThreads)
    number_groups(const int64_t* order, const int64_t* begun, int64_t n, int64_t* group) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x)
    group[order[i]] = begun[i] - 1;
}

int64_t unique_rows(const Array& x_in, Array& order, Array& group) {
  HOLON_CHECK(order.is_contiguous() && group.is_contiguous(), "unique: {} and {}", order.strides, group.strides);
  const int64_t n = x_in.shape[0], width = x_in.shape[1];
  if (n == 0) return 0;
  use_device_of(order);
  const Array x = contiguous(x_in);
  // By the last column first: each sort keeps the order of the one before among equals.
  Array column = Array::empty({n}, x.dtype, x.device), places = Array::empty({n}, DType::kInt64, x.device),
        next = Array::empty({n}, DType::kInt64, x.device);
  int64_t groups = 0;
  return visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (width == 0) {
      arange(int64_t{0}, int64_t{1}, 0, order);
    }
    for (int64_t k = width - 1; k >= 0; --k) {
      const bool first = k == width - 1;
      launch(gather_column<T>, blocks_for(n, kThreads), kThreads, 0, x.data<T>(), width, k,
             first ? nullptr : order.data<int64_t>(), n, column.data<T>());
      if (first) {
        kernels::sort(column, false, nullptr, order);
        continue;
      }
      kernels::sort(column, false, nullptr, places);
      launch(follow, blocks_for(n, kThreads), kThreads, 0, order.data<int64_t>(), places.data<int64_t>(), n,
             next.data<int64_t>());
      kernels::copy(next, order);
    }
    const Scratch flags(static_cast<size_t>(n));
    auto* begun = next.data<int64_t>();
    launch(set_flags<BeginsGroup<T>>, blocks_for(n, kThreads), kThreads, 0,
           BeginsGroup<T>{x.data<T>(), width, order.data<int64_t>()}, 0, n, flags.data<uint8_t>());
    sum_flags(flags.data<uint8_t>(), n, begun);
    launch(number_groups, blocks_for(n, kThreads), kThreads, 0, order.data<int64_t>(), begun, n, group.data<int64_t>());
    device_runtime()->copy_to_host(x.device.index, &groups, begun + n - 1, sizeof groups);
    return groups;
  });
}

// ---- counting

struct Largest {
  int64_t largest, negative, value;  // negative: the first position of one, or INT64_MAX; value: what is there
};
template <class T>
__global__ void __launch_bounds__(kThreads) find_largest(const T* x, int64_t n, Largest* found) {
  int64_t largest = -1, negative = INT64_MAX;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x) {
    const auto v = static_cast<int64_t>(x[i]);
    largest = v > largest ? v : largest;
    if (v < 0 && i < negative) negative = i;
  }
  largest = block_reduce(largest, int64_t{-1}, Max());
  negative = block_reduce(negative, int64_t{INT64_MAX}, Min());
  if (threadIdx.x != 0) return;
  atomicMax(reinterpret_cast<long long*>(&found->largest), static_cast<long long>(largest));
  atomicMin(reinterpret_cast<long long*>(&found->negative), static_cast<long long>(negative));
}
__global__ void begin_largest(Largest* found) { *found = {-1, INT64_MAX, 0}; }
template <class T>
__global__ void end_largest(const T* x, Largest* found) {
  if (found->negative != INT64_MAX) found->value = static_cast<int64_t>(x[found->negative]);
}

int64_t largest_count(const Array& x_in) {
  Largest found{-1, INT64_MAX, 0};
  if (x_in.numel() == 0) return -1;
  use_device_of(x_in);
  const Array x = contiguous(x_in);
  const Scratch memory(sizeof(Largest));
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      launch(begin_largest, 1, 1, 0, memory.data<Largest>());
      launch(find_largest<T>, blocks_for(x.numel(), kThreads), kThreads, 0, x.data<T>(), x.numel(),
             memory.data<Largest>());
      launch(end_largest<T>, 1, 1, 0, x.data<T>(), memory.data<Largest>());
    } else {
      fail_type("bincount: {} is not an integer type. Convert it by to(int64).", name(x.dtype));
    }
  });
  device_runtime()->copy_to_host(x.device.index, &found, memory.data<Largest>(), sizeof found);
  if (found.negative != INT64_MAX)
    fail_value("bincount: element {} at position {} is negative; only numbers from 0 on are counted.", found.value,
               found.negative);
  return found.largest;
}

// Counts in each block's own memory where the bins fit there, so that few of them meet in global memory. bin_of(i): a
// bin, or -1. Sums of integers do not depend on the order of the atomics.
template <class BinOf>
__global__ void __launch_bounds__(kThreads)
    count_bins(BinOf bin_of, int64_t n, int64_t bins, bool shared, int64_t* counts) {
  auto* own = dynamic_shared<unsigned>();
  if (shared) {
    for (int64_t b = threadIdx.x; b < bins; b += kThreads) own[b] = 0;
    __syncthreads();
  }
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < n; i += int64_t{kThreads} * gridDim.x) {
    const int64_t b = bin_of(i);
    if (b < 0) continue;
    if (shared)
      atomicAdd(&own[b], 1u);
    else
      atomicAdd(reinterpret_cast<unsigned long long*>(&counts[b]), 1ull);
  }
  if (!shared) return;
  __syncthreads();
  for (int64_t b = threadIdx.x; b < bins; b += kThreads)
    if (own[b]) atomicAdd(reinterpret_cast<unsigned long long*>(&counts[b]), static_cast<unsigned long long>(own[b]));
}

template <class BinOf>
void run_count(const BinOf& bin_of, int64_t n, const Array& counts) {
  const int64_t bins = counts.numel();
  if (n == 0 || bins == 0) return;
  // A block's count of one bin fits 32 bits: no grid has so few blocks that one sees 2^32 elements.
  const bool shared = bins <= 8192 && n < int64_t{1} << 36;
  launch(count_bins<BinOf>, blocks_for(n, kThreads * 4), kThreads,
         shared ? static_cast<size_t>(bins) * sizeof(unsigned) : 0, bin_of, n, bins, shared, counts.data<int64_t>());
}

template <class T>
struct Itself {
  const T* x;
  int64_t bins;
  __device__ int64_t operator()(int64_t i) const {
    const auto v = static_cast<int64_t>(x[i]);
    return v >= 0 && v < bins ? v : -1;
  }
};
template <class T>
struct Between {
  const T* x;
  double low, high;
  int64_t bins;
  __device__ int64_t operator()(int64_t i) const {
    const auto v = static_cast<double>(widen(x[i]));
    if (!(v >= low && v <= high)) return -1;
    const auto b = static_cast<int64_t>((v - low) / (high - low) * static_cast<double>(bins));
    return b < 0 ? 0 : b > bins - 1 ? bins - 1 : b;
  }
};

void bincount(const Array& x_in, const Array* weights, Array& out) {
  fill(out, 0);
  const int64_t n = x_in.numel();
  if (n == 0 || out.numel() == 0) return;
  use_device_of(out);
  if (weights) {
    // Sums of one bin in the order of the elements.
    Array x = contiguous(x_in).view({n}, {1}), places = x;
    if (x.dtype != DType::kInt64 && x.dtype != DType::kInt32) {
      places = Array::empty({n}, DType::kInt64, x.device);
      kernels::copy(x, places);
    }
    Puts p;
    p.entries = {n};
    p.entry_x = {0};
    p.entry_source = p.entry_index = {1};
    p.high = out.numel() - 1;
    return put(PutOp::kAdd, out, contiguous(*weights), Lookup(places, out.numel(), 0, out.numel(), 1, 1), p);
  }
  const Array x = contiguous(x_in);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) run_count(Itself<T>{x.data<T>(), out.numel()}, n, out);
  });
}

void histc(const Array& x_in, double low, double high, Array& out) {
  use_device_of(out);
  const Array x = contiguous(x_in);
  Array counts = Array::empty({out.numel()}, DType::kInt64, out.device);
  fill(counts, 0);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    run_count(Between<T>{x.data<T>(), low, high, out.numel()}, x.numel(), counts);
  });
  kernels::copy(counts, out);
}

HOLON_DEVICE_KERNEL(searchsorted, searchsorted);
HOLON_DEVICE_KERNEL(nonzero, nonzero);
HOLON_DEVICE_KERNEL(masked_select, masked_select);
HOLON_DEVICE_KERNEL(unique_rows, unique_rows);
HOLON_DEVICE_KERNEL(largest_count, largest_count);
HOLON_DEVICE_KERNEL(bincount, bincount);
HOLON_DEVICE_KERNEL(histc, histc);

}  // namespace
}  // namespace holon::kernels::cuda
