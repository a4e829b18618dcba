#include "holon/kernels/expert_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "holon/array/dtype.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/base/small_vec.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/cpu/stream.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

// Columns that are summed in registers and the first-level cache, over all terms, before the next ones.
constexpr int64_t kBlock = 256;

// row_at(j): the j-th of n terms; its weight is weights[term[j]], if there are any.
template <class T, class RowAt>
void sum_row(RowAt row_at, const T* weights, const int64_t* term, int64_t n, T* out, int64_t width) {
  using C = typename DTypeOf<T>::Compute;
  if (n == 1 && !weights) {
    std::memcpy(out, row_at(0), to_size(width) * sizeof(T));
    return;
  }
  C sum[kBlock];
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    const int64_t some = std::min(kBlock, width - begin);
    std::fill_n(sum, some, C(0));
    for (int64_t j = 0; j < n; ++j) {
      const T* row = row_at(j) + begin;
      const C w = weights ? static_cast<C>(weights[term[j]]) : C(1);
      for (int64_t i = 0; i < some; ++i) sum[i] += w * static_cast<C>(row[i]);
    }
    for (int64_t i = 0; i < some; ++i) out[begin + i] = static_cast<T>(sum[i]);
  }
}

// Results of so many bytes are written past the caches, as those of copies and sums of ranks are (add_n.h), in rows
// that are not too short for that.
constexpr size_t kStreamSumBytes = size_t{8} << 20;
constexpr int64_t kStreamedRow = 1024;

// Rows for a thread at least.
int64_t rows_per_thread(int64_t row_bytes) {
  constexpr int64_t kBytes = 1 << 18;
  return std::max<int64_t>(1, kBytes / std::max<int64_t>(1, row_bytes));
}

}  // namespace

void sum_rows(const Array& x, const Array& starts, const Array& rows, const Array& weights, Array& out) {
  HOLON_ON_DEVICE(out, sum_rows, x, starts, rows, weights, out);
  HOLON_CHECK(x.ndim() == 2 && out.ndim() == 2 && x.shape[1] == out.shape[1] && x.dtype == out.dtype &&
                  starts.shape == Dims{out.shape[0] + 1} &&
                  (!weights.defined() || (weights.shape == Dims{x.shape[0]} && weights.dtype == x.dtype)),
              "sum_rows: {} of {} into {}", rows.shape, x.shape, out.shape);
  const int64_t width = x.shape[1];
  visit_floating(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto *begin = starts.data<int64_t>(), *row = rows.data<int64_t>();
    const T* weight = weights.defined() ? weights.data<T>() : nullptr;
    parallel_for(out.shape[0], rows_per_thread(width * static_cast<int64_t>(sizeof(T))), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const int64_t* term = row + begin[i];
        auto row_at = [&](int64_t j) { return x.data<T>() + term[j] * x.strides[0]; };
        sum_row<T>(row_at, weight, term, begin[i + 1] - begin[i], out.data<T>() + i * out.strides[0], width);
      }
    });
  });
}

void copy_rows_from(std::span<const std::byte* const> rows, Array& out) {
  HOLON_CHECK(out.ndim() == 2 && out.is_contiguous() && out.device.is_host() && rows.size() == to_size(out.shape[0]),
              "copy_rows_from: {} rows into {}", rows.size(), out.shape);
  const int64_t bytes = out.shape[1] * static_cast<int64_t>(size_bytes(out.dtype));
  const bool stream = out.nbytes() >= kStreamCopyBytes && bytes >= kStreamedRow;
  parallel_for(out.shape[0], rows_per_thread(bytes), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to;) {
      const int64_t first = i;
      for (++i; i < to && at_index(rows, i) == at_index(rows, i - 1) + bytes;) ++i;
      if (bytes == 0) continue;
      std::byte* dst = out.bytes() + first * bytes;
      const auto size = to_size((i - first) * bytes);
      if (stream)
        stream_bytes(dst, at_index(rows, first), size);
      else
        std::memcpy(dst, at_index(rows, first), size);
    }
    if (stream) stream_fence();
  });
}

void sum_rows_from(std::span<const int64_t> starts, std::span<const std::byte* const> rows, Array& out) {
  HOLON_CHECK(out.ndim() == 2 && out.is_contiguous() && out.device.is_host() &&
                  starts.size() == to_size(out.shape[0] + 1),
              "sum_rows_from: {} rows into {}", starts.size(), out.shape);
  const int64_t width = out.shape[1], bytes = width * static_cast<int64_t>(size_bytes(out.dtype));
  const bool stream = out.nbytes() >= kStreamSumBytes && bytes >= kStreamedRow;
  parallel_for(out.shape[0], rows_per_thread(bytes), [&](int64_t from, int64_t to) {
    std::vector<std::byte> buffer(to_size(stream ? bytes : 0));
    SmallVec<const void*, 16> terms;
    for (int64_t i = from; i < to; ++i) {
      const int64_t first = at_index(starts, i), n = at_index(starts, i + 1) - first;
      std::byte* dst = out.bytes() + i * bytes;
      std::byte* sum = stream && n != 1 ? buffer.data() : dst;
      const void* row = sum;
      if (n == 0 && bytes > 0) std::memset(sum, 0, to_size(bytes));
      if (n == 1) row = at_index(rows, first);
      if (n > 1) {
        terms.clear();
        for (int64_t j = 0; j < n; ++j) terms.push_back(at_index(rows, first + j));
        add_n(sum, terms, width, out.dtype);
      }
      if (row == dst || bytes == 0) continue;
      if (stream)
        stream_bytes(dst, row, to_size(bytes));
      else
        std::memcpy(dst, row, to_size(bytes));
    }
    if (stream) stream_fence();
  });
}

}  // namespace holon::kernels
