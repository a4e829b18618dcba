// Sorting along the last axis: rows become keys, unsigned integers in the requested order, with the place of
// their element behind them, so that sorting is stable and compares nothing but integers.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/indices.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/cpu/sort_loops.h"
#include "holon/kernels/device.h"
#include "holon/kernels/index.h"
#include "holon/kernels/sort_keys.h"

namespace holon::kernels {

namespace {

using HOLON_ISA::f::sort_key;

// A key and the place of its element: in one number, or apart.
using NarrowEntry = uint64_t;
struct WideEntry {
  uint64_t key;
  int64_t place;
  bool operator<(const WideEntry& o) const { return key != o.key ? key < o.key : place < o.place; }
};
uint64_t key_of(NarrowEntry e) { return e >> 32; }
uint64_t key_of(const WideEntry& e) { return e.key; }
int64_t place_of(NarrowEntry e) { return static_cast<int64_t>(e & 0xffffffffu); }
int64_t place_of(const WideEntry& e) { return e.place; }
constexpr int digits_of(const NarrowEntry*) { return 4; }
constexpr int digits_of(const WideEntry*) { return 8; }

// From here on entries are sorted digit by digit.
constexpr int64_t kByDigits = 192;

// Entries whose places rise, in order of their keys, by one counting sort for each byte; `other` has room for as many.
// Bytes that all keys share are left out. Returns which of the two arrays the result is in.
template <class E>
E* sort_by_digits(E* entries, E* other, int64_t n) {
  constexpr int kDigits = digits_of(static_cast<const E*>(nullptr));
  std::vector<int64_t> counts(kDigits * 256);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t key = key_of(entries[i]);
    for (int d = 0; d < kDigits; ++d) ++counts[to_size(d) * 256 + (key >> (8 * d) & 255)];
  }
  for (int d = 0; d < kDigits; ++d) {
    int64_t* to = counts.data() + d * 256;
    if (to[key_of(entries[0]) >> (8 * d) & 255] == n) continue;
    int64_t before = 0;
    for (int v = 0; v < 256; ++v) before += std::exchange(to[v], before);
    for (int64_t i = 0; i < n; ++i) other[to[key_of(entries[i]) >> (8 * d) & 255]++] = entries[i];
    std::swap(entries, other);
  }
  return entries;
}

// The places of the first k of n elements in order; keeps its memory between rows.
class Orderer {
 public:
  template <class T>
  void run(const T* row, int64_t n, int64_t k, bool descending, int64_t* order) {
    // Keys of 32 bits and their places fit one number, unless the row is longer than 2^32.
    if constexpr (sizeof(T) == 4)
      if (n <= (int64_t{1} << 32)) return run_narrow(row, n, k, descending, order);
    first(wide_, wide_other_, n, k, order, [&](int64_t i) {
      const uint64_t key = sort_key(row[i]);
      const uint64_t top = sizeof(T) == 4 ? 0xffffffffu : ~uint64_t{0};
      return WideEntry{descending ? top - key : key, i};
    });
  }

 private:
  template <class T>
  void run_narrow(const T* row, int64_t n, int64_t k, bool descending, int64_t* order) {
    keys_.resize(to_size(n + kSortPadding));
    // Signed, as all instruction sets compare.
    const uint32_t flip = descending ? 0x7fffffffu : 0x80000000u;
    int32_t* keys = keys_.data();
    for (int64_t i = 0; i < n; ++i) keys[i] = static_cast<int32_t>(sort_key(row[i]) ^ flip);
    if (k * 8 < n && k <= kListed) return loops_.list_smallest(keys, n, k, order);
    if (k == n && n <= loops_.counted) return loops_.order_by_counting(keys, n, order);
    first(narrow_, narrow_other_, n, k, order, [&](int64_t i) {
      return uint64_t{static_cast<uint32_t>(keys[i]) ^ 0x80000000u} << 32 | static_cast<uint64_t>(i);
    });
  }

  template <class E, class Make>
  static void first(std::vector<E>& entries, std::vector<E>& other, int64_t n, int64_t k, int64_t* order, Make make) {
    entries.clear();
    const E* sorted = nullptr;
    if (k * 8 < n) {  // few of many: a heap of the best so far, which most others do not enter
      for (int64_t i = 0; i < k; ++i) entries.push_back(make(i));
      std::make_heap(entries.begin(), entries.end());
      for (int64_t i = k; i < n; ++i) {
        const E e = make(i);
        if (!(e < entries.front())) continue;
        std::pop_heap(entries.begin(), entries.end());
        entries.back() = e;
        std::push_heap(entries.begin(), entries.end());
      }
      std::sort_heap(entries.begin(), entries.end());
      sorted = entries.data();
    } else {
      entries.reserve(to_size(n));
      for (int64_t i = 0; i < n; ++i) entries.push_back(make(i));
      if (n >= kByDigits) {
        other.resize(to_size(n));
        sorted = sort_by_digits(entries.data(), other.data(), n);
      } else {
        if (k < n) std::nth_element(entries.begin(), entries.begin() + k, entries.end());
        std::sort(entries.begin(), entries.begin() + k);
        sorted = entries.data();
      }
    }
    for (int64_t j = 0; j < k; ++j) order[j] = place_of(sorted[j]);
  }

  const SortLoops& loops_ = sort_loops();
  std::vector<int32_t> keys_;
  std::vector<NarrowEntry> narrow_, narrow_other_;
  std::vector<WideEntry> wide_, wide_other_;
};

void order_rows(const Array& x, int64_t k, bool descending, Array* values, Array& indices) {
  HOLON_CHECK(indices.dtype == DType::kInt64 && (!values || values->dtype == x.dtype), "sort: the indices are {}",
              name(indices.dtype));
  Array in = x, out_values, out_indices = indices;
  if (values) out_values = *values;
  // An array without axes is one row of one element.
  for (Array* a : {&in, &out_values, &out_indices})
    if (a->defined() && a->ndim() == 0) a->shape = a->strides = {1};
  const int64_t n = in.shape.back(), size = bytes_of(x.dtype), in_step = in.strides.back() * size;
  if (in.numel() == 0 || k == 0) return;
  auto row_offsets = [](Array a) {
    a.shape[a.ndim() - 1] = 1;
    std::vector<int64_t> out;
    out.reserve(to_size(a.numel()));
    for_each_row(a.shape, a.strides, [&](int64_t at) { out.push_back(at * bytes_of(a.dtype)); });
    return out;
  };
  const std::vector<int64_t> from = row_offsets(in), to = row_offsets(out_indices);
  const std::vector<int64_t> values_to = values ? row_offsets(out_values) : std::vector<int64_t>();
  const DType compute = dtype_of(compute_type(x.dtype));
  parallel_for(static_cast<int64_t>(from.size()), std::max<int64_t>(1, 2048 / n), [&](int64_t begin, int64_t end) {
    std::vector<std::byte> row(to_size(n) * 8), scratch(to_size(n) * 8);
    std::vector<int64_t> order(to_size(k));
    Orderer orderer;
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* src = in.bytes() + at_index(from, i);
      const void* elements = src;
      if (x.dtype != compute || in_step != size) {
        load_elements(src, in_step, x.dtype, compute, row.data(), n, scratch.data());
        elements = row.data();
      }
      switch (compute_type(x.dtype)) {
        case Compute::kF32: orderer.run(static_cast<const float*>(elements), n, k, descending, order.data()); break;
        case Compute::kF64: orderer.run(static_cast<const double*>(elements), n, k, descending, order.data()); break;
        case Compute::kI32: orderer.run(static_cast<const int32_t*>(elements), n, k, descending, order.data()); break;
        case Compute::kI64: orderer.run(static_cast<const int64_t*>(elements), n, k, descending, order.data()); break;
      }
      scatter_elements(reinterpret_cast<const std::byte*>(order.data()), indices.bytes() + at_index(to, i),
                       out_indices.strides.back() * 8, 8, k);
      if (values) {
        // Gathered before any is written: values may be x.
        visit_size(x.dtype, [&](auto tag) {
          using V = typename decltype(tag)::type;
          V* gathered = reinterpret_cast<V*>(scratch.data());
          for (int64_t j = 0; j < k; ++j) std::memcpy(gathered + j, src + at_index(order, j) * in_step, sizeof(V));
        });
        scatter_elements(scratch.data(), values->bytes() + at_index(values_to, i), out_values.strides.back() * size,
                         to_size(size), k);
      }
    }
  });
}

}  // namespace

void sort(const Array& x, bool descending, Array* values, Array& indices) {
  HOLON_ON_DEVICE(indices, sort, x, descending, values, indices);
  HOLON_CHECK(indices.shape == x.shape && (!values || values->shape == x.shape), "sort: {} into {}", x.shape,
              indices.shape);
  order_rows(x, x.ndim() == 0 ? 1 : x.shape.back(), descending, values, indices);
}

void topk(const Array& x, int64_t k, bool largest, Array& values, Array& indices) {
  HOLON_ON_DEVICE(values, topk, x, k, largest, values, indices);
  const int64_t n = x.ndim() == 0 ? 1 : x.shape.back();
  if (k < 0 || k > n) fail_value("topk: {} of {} elements were requested (shape {}).", k, n, x.shape);
  HOLON_CHECK(values.shape == indices.shape && (x.ndim() == 0 || values.shape.back() == k), "topk: {} into {}", x.shape,
              values.shape);
  order_rows(x, k, largest, &values, indices);
}

}  // namespace holon::kernels
