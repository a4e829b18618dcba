#include "holon/kernels/search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "holon/base/error.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/device.h"

namespace holon::kernels {

namespace {

// x < y with NaN above all.
template <class T>
bool below(T x, T y) {
  if constexpr (std::is_integral_v<T>)
    return x < y;
  else
    return static_cast<double>(x) < static_cast<double>(y) ||
        (std::isnan(static_cast<double>(y)) && !std::isnan(static_cast<double>(x)));
}

void put(Array& out, int64_t at, int64_t v) {
  if (out.dtype == DType::kInt32)
    out.data<int32_t>()[at] = static_cast<int32_t>(v);
  else
    out.data<int64_t>()[at] = v;
}

}  // namespace

void searchsorted(const Array& sorted_in, const Array& values_in, bool right, Array& out) {
  HOLON_ON_DEVICE(out, searchsorted, sorted_in, values_in, right, out);
  HOLON_CHECK(sorted_in.dtype == values_in.dtype && out.shape == values_in.shape && out.is_contiguous() &&
                  (out.dtype == DType::kInt32 || out.dtype == DType::kInt64),
              "searchsorted: {} in {} into {}", values_in.shape, sorted_in.shape, out.shape);
  const Array sorted = contiguous(sorted_in), values = contiguous(values_in);
  const int64_t n = sorted.shape.back(), per_row = sorted.ndim() == 1 ? values.numel() : values.shape.back();
  visit_dtype(sorted.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < values.numel(); ++i) {
      const T* row = sorted.data<T>() + (per_row ? i / per_row : 0) * (sorted.ndim() == 1 ? 0 : n);
      const T v = values.data<T>()[i];
      const T* at = right ? std::upper_bound(row, row + n, v, below<T>) : std::lower_bound(row, row + n, v, below<T>);
      put(out, i, at - row);
    }
  });
}

int64_t largest_count(const Array& x_in) {
  HOLON_ON_DEVICE(x_in, largest_count, x_in);
  const Array x = contiguous(x_in);
  int64_t largest = -1;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      for (int64_t i = 0; i < x.numel(); ++i) {
        const auto v = static_cast<int64_t>(x.data<T>()[i]);
        if (v < 0)
          fail_value("bincount: element {} at position {} is negative; only numbers from 0 on are counted.", v, i);
        largest = std::max(largest, v);
      }
    } else {
      fail_type("bincount: {} is not an integer type. Convert it by to(int64).", name(x.dtype));
    }
  });
  return largest;
}

void bincount(const Array& x_in, const Array* weights, Array& out) {
  HOLON_ON_DEVICE(out, bincount, x_in, weights, out);
  const Array x = contiguous(x_in);
  fill(out, 0);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<T>) {
      auto place = [&](int64_t i) {
        const auto k = static_cast<int64_t>(x.data<T>()[i]);
        HOLON_CHECK(k >= 0 && k < out.numel(), "bincount: {} in {} bins", k, out.numel());
        return k;
      };
      if (!weights) {
        for (int64_t i = 0; i < x.numel(); ++i) ++out.data<int64_t>()[place(i)];
        return;
      }
      const Array w = contiguous(*weights);
      visit_dtype(out.dtype, [&](auto out_tag) {
        using W = typename decltype(out_tag)::type;
        if constexpr (std::is_same_v<W, float> || std::is_same_v<W, double>)
          for (int64_t i = 0; i < x.numel(); ++i) out.data<W>()[place(i)] += w.data<W>()[i];
      });
    }
  });
}

void histc(const Array& x_in, double low, double high, Array& out) {
  HOLON_ON_DEVICE(out, histc, x_in, low, high, out);
  const Array x = contiguous(x_in);
  const int64_t bins = out.numel();
  Array counts = Array::empty({bins}, DType::kInt64);
  fill(counts, 0);
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto v = static_cast<double>(x.data<T>()[i]);
      if (!(v >= low && v <= high)) continue;
      const auto b = static_cast<int64_t>((v - low) / (high - low) * static_cast<double>(bins));
      ++counts.data<int64_t>()[std::clamp<int64_t>(b, 0, bins - 1)];
    }
  });
  copy(counts, out);
}

int64_t unique_rows(const Array& x_in, Array& order, Array& group) {
  HOLON_ON_DEVICE(order, unique_rows, x_in, order, group);
  const Array x = contiguous(x_in);
  const int64_t n = x.shape[0], width = x.shape[1];
  auto* o = order.data<int64_t>();
  auto* g = group.data<int64_t>();
  std::iota(o, o + n, int64_t{0});
  int64_t groups = 0;
  visit_dtype(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    auto row = [&](int64_t i) { return x.data<T>() + i * width; };
    std::sort(o, o + n, [&](int64_t a, int64_t b) {
      const T *p = row(a), *q = row(b);
      for (int64_t k = 0; k < width; ++k) {
        if (below(p[k], q[k])) return true;
        if (below(q[k], p[k])) return false;
      }
      return a < b;
    });
    for (int64_t i = 0; i < n; ++i) {
      // Elements that compare equal are one group; a NaN equals nothing.
      bool same = i > 0;
      for (int64_t k = 0; same && k < width; ++k) same = row(o[i])[k] == row(o[i - 1])[k];
      groups += !same;
      g[o[i]] = groups - 1;
    }
  });
  return groups;
}

}  // namespace holon::kernels
