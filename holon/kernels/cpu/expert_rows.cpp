#include "holon/kernels/expert_rows.h"

#include <algorithm>
#include <cstring>

#include "holon/array/dtype.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
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

// Rows of out for a thread at least.
int64_t grain(int64_t width) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width)); }

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
    parallel_for(out.shape[0], grain(width), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const int64_t* term = row + begin[i];
        auto row_at = [&](int64_t j) { return x.data<T>() + term[j] * x.strides[0]; };
        sum_row<T>(row_at, weight, term, begin[i + 1] - begin[i], out.data<T>() + i * out.strides[0], width);
      }
    });
  });
}

void sum_rows_at(std::span<const int64_t> starts, std::span<const std::byte* const> rows, Array& out) {
  HOLON_CHECK(out.ndim() == 2 && out.device.is_host() && starts.size() == to_size(out.shape[0] + 1),
              "sum_rows_at: {} rows into {}", starts.size(), out.shape);
  const int64_t width = out.shape[1];
  visit_floating(out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_for(out.shape[0], grain(width), [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        const int64_t first = at_index(starts, i);
        auto row_at = [&](int64_t j) { return reinterpret_cast<const T*>(at_index(rows, first + j)); };
        sum_row<T>(row_at, nullptr, nullptr, at_index(starts, i + 1) - first, out.data<T>() + i * out.strides[0],
                   width);
      }
    });
  });
}

}  // namespace holon::kernels
