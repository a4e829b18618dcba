// Writing by index. The entries are put in the order of the places that they write to, those of one place in their own
// order, and one thread writes each element: no atomics, and the same sums as on the CPU.
#include <algorithm>
#include <numeric>

#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cuda/lookup.h"
#include "holon/kernels/cuda/order.h"
#include "holon/kernels/cuda/types.h"
#include "holon/kernels/variants.h"

namespace holon::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A key for each entry that rises with its place in x; `limit` for those that write nothing.
template <class K>
__global__ void __launch_bounds__(kThreads)
    make_put_keys(Strided<2> entries, Lookup lookup, int64_t low, int64_t unit, int64_t limit, K* keys) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < entries.count;
       i += int64_t{kThreads} * gridDim.x) {
    const auto at = entries.at(i);
    const int64_t place = lookup.place(at.v[1], i);
    keys[i] = static_cast<K>(place == kElsewhere ? limit : (at.v[0] + place - low) / unit);
  }
}

// The entries in order: where they are in source, and where the keys are in x.
struct Entries {
  const void* keys;
  bool wide;  // 64 bits, else 32: not worth kernels of their own
  const uint32_t* order;
  int64_t count, low, unit, limit;
  int64_t source_step;     // from one entry to the next in source, where it is one step
  const int64_t* located;  // else where the i-th of the order is

  __device__ __forceinline__ int64_t key(int64_t i) const {
    return wide ? static_cast<const int64_t*>(keys)[i] : static_cast<const uint32_t*>(keys)[i];
  }
  __device__ __forceinline__ int64_t source(int64_t i) const {
    return located ? located[i] : static_cast<int64_t>(order[i]) * source_step;
  }
  __device__ __forceinline__ int64_t place(int64_t key) const { return key * unit + low; }
};

__global__ void __launch_bounds__(kThreads)
    locate_sources(Strided<1> in_source, const uint32_t* order, int64_t count, int64_t* located) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{kThreads} * gridDim.x)
    located[i] = in_source.at(order[i]).v[0];
}

// A row of columns for every entry, as the number of a thread's element tells.
struct Columns {
  Strided<2> in;  // x, source
  Divider by_count;
  bool small;

  explicit Columns(const Strided<2>& columns, int64_t entries)
      : in(columns), small(columns.count * entries < (int64_t{1} << 31)) {
    if (small) by_count = Divider(static_cast<uint32_t>(columns.count));
  }
  __device__ __forceinline__ int64_t entry_of(int64_t i) const {
    return small ? by_count.quotient(static_cast<uint32_t>(i)) : i / in.count;
  }
};

// The last entry of a place writes. V: so many bytes; x, source and the strides in V's, of 2^shift elements.
template <class V>
__global__ void __launch_bounds__(kThreads)
    set_entries(V* x, const V* source, Entries entries, Columns columns, int shift) {
  const int64_t count = entries.count * columns.in.count;
  for (int64_t t = blockIdx.x * int64_t{kThreads} + threadIdx.x; t < count; t += int64_t{kThreads} * gridDim.x) {
    const int64_t i = columns.entry_of(t);
    const int64_t key = entries.key(i);
    if (key >= entries.limit || (i + 1 < entries.count && entries.key(i + 1) == key)) continue;
    const auto at = columns.in.at(t - i * columns.in.count);
    x[(entries.place(key) >> shift) + at.v[0]] = source[(entries.source(i) >> shift) + at.v[1]];
  }
}

template <class T, class A>
__device__ __forceinline__ A combine(PutOp op, A a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == PutOp::kMultiply ? (a && b) : (a || b);
  } else {
    const auto p = static_cast<Compute<T>>(a), q = widen(b);
    return static_cast<A>(op == PutOp::kMultiply ? p * q : p + q);
  }
}
// 16-bit floats rounded in every step.
template <class T>
__device__ __forceinline__ T combine_half(PutOp op, T a, T b) {
  const float p = widen(a), q = widen(b);
  return narrow<T>(op == PutOp::kMultiply ? p * q : p + q);
}

// The first entry of a place adds up all of them, kN columns at a time. kWide: in float32.
template <class T, int kN, bool kWide>
__global__ void __launch_bounds__(kThreads)
    add_entries(PutOp op, bool onto, T* x, const T* source, Entries entries, Columns columns) {
  constexpr bool kHalf = sizeof(Compute<T>) == 4 && std::is_same_v<Compute<T>, float> && sizeof(T) == 2;
  using Sum = std::conditional_t<kWide, Compute<T>, T>;
  using Row = Pack<T, kN>;
  const int64_t count = entries.count * columns.in.count;
  for (int64_t t = blockIdx.x * int64_t{kThreads} + threadIdx.x; t < count; t += int64_t{kThreads} * gridDim.x) {
    int64_t i = columns.entry_of(t);
    const int64_t key = entries.key(i);
    if (key >= entries.limit || (i > 0 && entries.key(i - 1) == key)) continue;
    const auto at = columns.in.at(t - i * columns.in.count);
    Row* to = reinterpret_cast<Row*>(x + entries.place(key) + at.v[0] * kN);
    const T* from = source + at.v[1] * kN;
    Sum sum[kN];
    Row row{};
    if (onto) row = *to;
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      if constexpr (kWide)
        sum[k] = widen(row.v[k]);
      else
        sum[k] = row.v[k];
    }
    auto take_in = [&](const Row& r) {
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        if constexpr (kHalf && !kWide)
          sum[k] = combine_half(op, sum[k], r.v[k]);
        else
          sum[k] = combine<T>(op, sum[k], r.v[k]);
      }
    };
    // Several loads at a time, as each addition waits for the one before.
    constexpr int kAhead = 8;
    while (i + kAhead <= entries.count && entries.key(i + kAhead - 1) == key) {
      Row rows[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) rows[a] = *reinterpret_cast<const Row*>(from + entries.source(i + a));
#pragma unroll
      for (int a = 0; a < kAhead; ++a) take_in(rows[a]);
      i += kAhead;
    }
    for (; i < entries.count && entries.key(i) == key; ++i)
      take_in(*reinterpret_cast<const Row*>(from + entries.source(i)));
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      if constexpr (kWide)
        row.v[k] = narrow<T>(sum[k]);
      else
        row.v[k] = sum[k];
    }
    *to = row;
  }
}

// Whether n elements may be read as one: n neighbours in both, at addresses that allow it.
bool packs(const Array& x, const Array& source, const Puts& p, int64_t n) {
  const int last = p.columns.size() - 1;
  if (last < 0 || p.columns[last] % n != 0 || p.column_x[last] != 1 || p.column_source[last] != 1) return false;
  const auto bytes = static_cast<uintptr_t>(n) * size_bytes(x.dtype);
  if (reinterpret_cast<uintptr_t>(x.bytes()) % bytes || reinterpret_cast<uintptr_t>(source.bytes()) % bytes)
    return false;
  if (p.unit % n || p.low % n) return false;
  for (int d = 0; d < last; ++d)
    if (p.columns[d] != 1 && (p.column_x[d] % n || p.column_source[d] % n)) return false;
  for (int d = 0; d < p.entries.size(); ++d)
    if (p.entries[d] != 1 && p.entry_source[d] % n) return false;
  return true;
}

Columns columns_of(const Puts& p, int64_t n, int64_t entries) {
  Dims shape = p.columns, in_x = p.column_x, in_source = p.column_source;
  const int last = shape.size() - 1;
  for (int d = 0; d < last; ++d) in_x[d] /= n, in_source[d] /= n;
  if (last >= 0 && n > 1) shape[last] /= n;
  return Columns(Strided<2>(shape, {in_x, in_source}), entries);
}

template <class V>
void run_set(const Array& x, const Array& source, const Entries& entries, const Puts& p, int64_t n) {
  int shift = 0;
  while (int64_t{1} << shift < n) ++shift;
  const Columns columns = columns_of(p, n, entries.count);
  launch(set_entries<V>, blocks_for(entries.count * columns.in.count, kThreads), kThreads, 0, x.data<V>(),
         source.data<V>(), entries, columns, shift);
}

template <class T, int kN, bool kWide>
void run_add(PutOp op, bool onto, const Array& x, const Array& source, const Entries& entries, const Puts& p) {
  const Columns columns = columns_of(p, kN, entries.count);
  launch(add_entries<T, kN, kWide>, blocks_for(entries.count * columns.in.count, kThreads), kThreads, 0, op, onto,
         x.data<T>(), source.data<T>(), entries, columns);
}

void put_entries(PutOp op, const Array& x, const Array& source, const Puts& p, bool onto, const Entries& entries) {
  if (op == PutOp::kSet) {
    const auto size = static_cast<int64_t>(size_bytes(x.dtype));
    int64_t bytes = size;
    while (bytes < 16 && packs(x, source, p, bytes * 2 / size)) bytes *= 2;
    switch (bytes) {
      case 1: return run_set<uint8_t>(x, source, entries, p, 1);
      case 2: return run_set<uint16_t>(x, source, entries, p, 2 / size);
      case 4: return run_set<uint32_t>(x, source, entries, p, 4 / size);
      case 8: return run_set<uint64_t>(x, source, entries, p, 8 / size);
      default: return run_set<Pack<uint64_t, 2>>(x, source, entries, p, 16 / size);
    }
  }
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<Compute<T>, float> || std::is_same_v<T, double>) {
      const bool packed = packs(x, source, p, kPack<T>);
      if constexpr (sizeof(T) == 2)
        if (op == PutOp::kAddWide)
          return packed ? run_add<T, kPack<T>, true>(op, onto, x, source, entries, p)
                        : run_add<T, 1, true>(op, onto, x, source, entries, p);
      if (packed) return run_add<T, kPack<T>, false>(op, onto, x, source, entries, p);
    }
    run_add<T, 1, false>(op, onto, x, source, entries, p);
  });
}

template <class K>
void run_put(PutOp op, const Array& x, const Array& source, const Lookup& lookup, const Puts& p, bool onto) {
  const int64_t n = p.entries.numel(), limit = (p.high - p.low) / p.unit + 1;
  const Scratch memory(static_cast<size_t>(n) * sizeof(K));
  launch(make_put_keys<K>, blocks_for(n, kThreads), kThreads, 0, Strided<2>(p.entries, {p.entry_x, p.entry_index}),
         lookup, p.low, p.unit, limit, memory.data<K>());
  const RowOrder<K> order = order_rows_by_bits(memory.data<K>(), 1, n, bits_of(static_cast<uint64_t>(limit)));
  const Strided<1> in_source(p.entries, {p.entry_source});
  const bool apart = in_source.axes > 1;
  const Scratch located(apart ? static_cast<size_t>(n) * sizeof(int64_t) : 0);
  if (apart)
    launch(locate_sources, blocks_for(n, kThreads), kThreads, 0, in_source, order.places, n, located.data<int64_t>());
  put_entries(op, x, source, p, onto,
              {order.keys, sizeof(K) == 8, order.places, n, p.low, p.unit, limit,
               in_source.axes ? in_source.stride[0][0] : 0, apart ? located.data<int64_t>() : nullptr});
}

}  // namespace

void put(PutOp op, const Array& x, const Array& source, const Lookup& lookup, const Puts& p, bool onto) {
  const int64_t n = p.entries.numel();
  if (n == 0 || p.columns.numel() == 0) return;
  if (n >= int64_t{1} << 32) fail("more than 2^32 indices at once; write in several parts");
  use_device_of(x);
  if (bits_of(static_cast<uint64_t>((p.high - p.low) / p.unit + 1)) <= 32)
    run_put<uint32_t>(op, x, source, lookup, p, onto);
  else
    run_put<uint64_t>(op, x, source, lookup, p, onto);
}

namespace {

// Rows: one index array along one axis of x, all other elements of source its columns.
Puts rows_along(const Array& x, int axis, const Array& source) {
  Puts p;
  const int64_t step = x.strides[axis], far = step * std::max<int64_t>(x.shape[axis] - 1, 0);
  p.unit = std::max<int64_t>(std::abs(step), 1);
  p.low = std::min<int64_t>(far, 0);
  p.high = std::max<int64_t>(far, 0);
  p.columns = x.shape;
  p.column_x = x.strides;
  p.column_source = source.strides;
  for (Dims* d : {&p.columns, &p.column_x, &p.column_source}) d->erase(axis);
  return p;
}

void index_add(Array& out, int axis, const Array& indices, const Array& src, AxisPart part) {
  HOLON_CHECK(src.dtype == out.dtype && src.ndim() == out.ndim() && src.shape[axis] == indices.numel(),
              "index_add: {} of {} along axis {} into {}", indices.shape, src.shape, axis, out.shape);
  use_device_of(out);
  const int64_t n = out.shape[axis];
  Puts p = rows_along(out, axis, src);
  p.entries = {indices.numel()};
  p.entry_x = {0};
  p.entry_source = {src.strides[axis]};
  p.entry_index = {indices.ndim() ? indices.strides[0] : 0};
  put(PutOp::kAdd, out, src, Lookup(indices, part.size < 0 ? n : part.size, part.offset, n, out.strides[axis], 1), p);
}

void embedding_backward(const Array& dy, const Array& indices, int64_t row_offset, int64_t v_logical, Array& dweight,
                        bool adds) {
  HOLON_CHECK(dweight.ndim() == 2 && dy.ndim() == indices.ndim() + 1 && dy.shape.back() == dweight.shape[1] &&
                  dy.numel() == indices.numel() * dweight.shape[1],
              "embedding_backward: {} of {} into {}", dy.shape, indices.shape, dweight.shape);
  use_device_of(dweight);
  if (dy.dtype != dweight.dtype) {
    const DType wide = dweight.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    Array sum = Array::empty(dweight.shape, wide, dweight.device), addends = Array::empty(dy.shape, wide, dy.device);
    kernels::copy(dy, addends);
    if (adds) kernels::copy(dweight, sum);
    embedding_backward(addends, indices, row_offset, v_logical, sum, adds);
    return kernels::copy(sum, dweight);
  }
  if (!adds) fill(dweight, 0);
  Puts p = rows_along(dweight, 0, dweight);
  p.column_source = {dy.strides.back()};
  p.entries = indices.shape;
  p.entry_x = Dims::filled(indices.ndim(), 0);
  p.entry_source = dy.strides;
  p.entry_source.erase(dy.ndim() - 1);
  p.entry_index = indices.strides;
  put(PutOp::kAddWide, dweight, dy, Lookup(indices, v_logical, row_offset, dweight.shape[0], dweight.strides[0], 1), p,
      adds);
}

void scatter(ScatterOp op, Array& out, int axis, const Array& index, const Array& src, AxisPart part, const char*) {
  HOLON_CHECK(src.dtype == out.dtype && index.ndim() == out.ndim() && src.ndim() == out.ndim(),
              "scatter: {} {} by {} into {} {}", name(src.dtype), src.shape, index.shape, name(out.dtype), out.shape);
  use_device_of(out);
  const bool single = out.ndim() == 0;
  Puts p;
  p.entries = index.shape;
  p.entry_x = out.strides;
  p.entry_source = src.strides;
  p.entry_index = index.strides;
  if (!single) p.entry_x[axis] = 0;
  const int64_t held = single ? 1 : out.shape[axis], step = single ? 0 : out.strides[axis];
  p.unit = 0;
  auto reach = [&](int64_t size, int64_t stride) {
    if (size <= 1) return;
    p.unit = std::gcd(p.unit, stride);
    (stride < 0 ? p.low : p.high) += (size - 1) * stride;
  };
  reach(held, step);
  for (int d = 0; d < out.ndim(); ++d) reach(d == axis ? 1 : index.shape[d], p.entry_x[d]);
  if (p.unit == 0) p.unit = 1;
  put(op == ScatterOp::kSet       ? PutOp::kSet
          : op == ScatterOp::kAdd ? PutOp::kAdd
                                  : PutOp::kMultiply,
      out, src, Lookup(index, part.size < 0 ? held : part.size, part.offset, held, step, 1), p);
}

void scatter_scalar(ScatterOp op, Array& out, int axis, const Array& index, Scalar value) {
  Array one = Array::empty({}, out.dtype, out.device);
  fill(one, value);
  cuda::scatter(op, out, axis, index, one.view(index.shape, Dims::filled(index.ndim(), 0)), {}, "scatter");
}

HOLON_DEVICE_KERNEL(index_add, index_add);
HOLON_DEVICE_KERNEL(embedding_backward, embedding_backward);
HOLON_DEVICE_KERNEL(scatter, scatter);
HOLON_DEVICE_KERNEL(scatter_scalar, scatter_scalar);

}  // namespace
}  // namespace holon::kernels::cuda
