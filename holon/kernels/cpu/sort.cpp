// Sorting along the last axis: rows become keys, unsigned integers in the order that is asked for, with the place of
// their element behind them, so that sorting is stable and compares nothing but integers.
#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/cpu/loops.h"
#include "holon/kernels/cpu/scratch.h"
#include "holon/kernels/device.h"
#include "holon/kernels/index.h"
#include "holon/kernels/sort_keys.h"

namespace holon::kernels {

namespace {

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(size_bytes(dtype)); }

using HOLON_ISA::f::sort_key;

struct WideEntry {
  uint64_t key;
  int64_t place;
  bool operator<(const WideEntry& o) const { return key != o.key ? key < o.key : place < o.place; }
};

// The places of the first k of n elements in order; keeps its memory between rows.
class Orderer {
 public:
  template <class T>
  void run(const T* row, int64_t n, int64_t k, bool descending, int64_t* order) {
    // Keys of 32 bits and their places fit one number, unless the row is longer than 2^32.
    if constexpr (sizeof(T) == 4)
      if (n <= (int64_t{1} << 32)) {
        first(narrow_, n, k, [&](int64_t i) {
          return uint64_t{descending ? ~sort_key(row[i]) : sort_key(row[i])} << 32 | static_cast<uint64_t>(i);
        });
        for (int64_t j = 0; j < k; ++j) order[j] = static_cast<int64_t>(narrow_[static_cast<size_t>(j)] & 0xffffffffu);
        return;
      }
    first(wide_, n, k, [&](int64_t i) {
      const uint64_t key = sort_key(row[i]);
      const uint64_t top = sizeof(T) == 4 ? 0xffffffffu : ~uint64_t{0};
      return WideEntry{descending ? top - key : key, i};
    });
    for (int64_t j = 0; j < k; ++j) order[j] = wide_[static_cast<size_t>(j)].place;
  }

 private:
  // The k smallest entries in order, at the front of `entries`.
  template <class E, class Make>
  static void first(std::vector<E>& entries, int64_t n, int64_t k, Make make) {
    entries.clear();
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
      return;
    }
    entries.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) entries.push_back(make(i));
    if (k < n) std::nth_element(entries.begin(), entries.begin() + k, entries.end());
    std::sort(entries.begin(), entries.begin() + k);
  }

  std::vector<uint64_t> narrow_;
  std::vector<WideEntry> wide_;
};

void order_rows(const Array& x, int64_t k, bool descending, Array* values, Array& indices) {
  HOLON_CHECK(indices.dtype == DType::kInt64 && (!values || values->dtype == x.dtype), "sort: the indices are {}",
              name(indices.dtype));
  Array in = x, out_values, out_indices = indices;
  if (values) out_values = *values;
  // An array without axes is one row of one element.
  for (Array* a : {&in, &out_values, &out_indices})
    if (a->defined() && a->ndim() == 0) a->shape = a->strides = {1};
  const int64_t n = in.shape.back(), size = bytes_of(x.dtype);
  if (in.numel() == 0 || k == 0) return;
  auto row_offsets = [](Array a) {
    a.shape[a.ndim() - 1] = 1;
    std::vector<int64_t> out;
    out.reserve(static_cast<size_t>(a.numel()));
    for_each_row(a.shape, a.strides, [&](int64_t at) { out.push_back(at * bytes_of(a.dtype)); });
    return out;
  };
  const std::vector<int64_t> from = row_offsets(in), to = row_offsets(out_indices);
  const std::vector<int64_t> values_to = values ? row_offsets(out_values) : std::vector<int64_t>();
  const DType compute = dtype_of(compute_type(x.dtype));
  parallel_for(static_cast<int64_t>(from.size()), std::max<int64_t>(1, 2048 / n), [&](int64_t begin, int64_t end) {
    std::vector<std::byte> row(static_cast<size_t>(n) * 8), scratch(static_cast<size_t>(n) * 8);
    std::vector<int64_t> order(static_cast<size_t>(k));
    Orderer orderer;
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* src = in.bytes() + from[static_cast<size_t>(i)];
      load_elements(src, in.strides.back() * size, x.dtype, compute, row.data(), n, scratch.data());
      switch (compute_type(x.dtype)) {
        case Compute::kF32:
          orderer.run(reinterpret_cast<const float*>(row.data()), n, k, descending, order.data());
          break;
        case Compute::kF64:
          orderer.run(reinterpret_cast<const double*>(row.data()), n, k, descending, order.data());
          break;
        case Compute::kI32:
          orderer.run(reinterpret_cast<const int32_t*>(row.data()), n, k, descending, order.data());
          break;
        case Compute::kI64:
          orderer.run(reinterpret_cast<const int64_t*>(row.data()), n, k, descending, order.data());
          break;
      }
      scatter_elements(reinterpret_cast<const std::byte*>(order.data()), indices.bytes() + to[static_cast<size_t>(i)],
                       out_indices.strides.back() * 8, 8, k);
      if (values) {
        // Gathered before any is written: values may be x.
        for (int64_t j = 0; j < k; ++j)
          std::memcpy(scratch.data() + j * size, src + order[static_cast<size_t>(j)] * in.strides.back() * size,
                      static_cast<size_t>(size));
        scatter_elements(scratch.data(), values->bytes() + values_to[static_cast<size_t>(i)],
                         out_values.strides.back() * size, static_cast<size_t>(size), k);
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
  if (k < 0 || k > n) fail_value("topk: {} of {} elements were asked for (shape {}).", k, n, x.shape);
  HOLON_CHECK(values.shape == indices.shape && (x.ndim() == 0 || values.shape.back() == k), "topk: {} into {}", x.shape,
              values.shape);
  order_rows(x, k, largest, &values, indices);
}

}  // namespace holon::kernels
