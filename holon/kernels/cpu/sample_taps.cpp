#include "holon/kernels/sample_taps.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/parallel.h"
#include "holon/kernels/device.h"

namespace holon::kernels {
namespace {

constexpr int64_t kGrain = 16384;  // elements that a thread reads at least

// Sizes of a call, and its indices. here(): a place as a position in x's part, or a negative number.
struct Taps {
  const int64_t* index;
  int64_t n, c, q, k, part, first;

  Taps(const Array& indices, int64_t channels, int64_t part_size, Places places)
      : index(indices.data<int64_t>()),
        n(indices.shape[0]),
        c(channels),
        q(indices.shape[1]),
        k(indices.shape[2]),
        part(part_size),
        first(places.first) {
    for (int64_t i = 0; i < n * q * k; ++i)
      if (index[i] >= places.size)
        fail(ErrorKind::kIndex, "sample_taps: index {} is outside [0, {}).", index[i], places.size);
  }
  int64_t here(int64_t i) const {
    const int64_t at = index[i] < 0 ? -1 : index[i] - first;
    return at < part ? at : -1;
  }
  int64_t grain(int64_t per_item) const { return std::max<int64_t>(1, kGrain / std::max<int64_t>(per_item, 1)); }
};

template <class F>
void visit(DType dtype, F f) {
  HOLON_CHECK(dtype == DType::kFloat32 || dtype == DType::kFloat64, "sample_taps of {}", name(dtype));
  if (dtype == DType::kFloat64)
    f(double{});
  else
    f(float{});
}

}  // namespace

void sample_taps(const Array& x, const Array& weight, const Array& index, Places places, Array& y) {
  HOLON_ON_DEVICE(y, sample_taps, x, weight, index, places, y);
  const Taps s(index, x.shape[1], x.shape[2], places);
  visit(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *from = x.data<T>(), *w = weight.data<T>();
    T* to = y.data<T>();
    parallel_for(s.n * s.c, s.grain(s.q * s.k), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T* row = from + plane * s.part;
        int64_t i = plane / s.c * s.q * s.k;
        for (int64_t q = 0; q < s.q; ++q) {
          T sum = 0;
          for (int64_t k = 0; k < s.k; ++k, ++i)
            if (const int64_t at = s.here(i); at >= 0) sum += w[i] * row[at];
          to[plane * s.q + q] = sum;
        }
      }
    });
  });
}

void sample_taps_input(const Array& dy, const Array& weight, const Array& index, Places places, Array& dx) {
  HOLON_ON_DEVICE(dx, sample_taps_input, dy, weight, index, places, dx);
  const Taps s(index, dy.shape[1], dx.shape[2], places);
  visit(dy.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *from = dy.data<T>(), *w = weight.data<T>();
    T* to = dx.data<T>();
    parallel_for(s.n * s.c, s.grain(s.q * s.k + s.part), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        T* row = to + plane * s.part;
        std::fill_n(row, s.part, T(0));
        int64_t i = plane / s.c * s.q * s.k;
        for (int64_t q = 0; q < s.q; ++q)
          for (int64_t k = 0; k < s.k; ++k, ++i)
            if (const int64_t at = s.here(i); at >= 0) row[at] += w[i] * from[plane * s.q + q];
      }
    });
  });
}

void sample_taps_weight(const Array& dy, const Array& x, const Array& index, Places places, Array& dweight) {
  HOLON_ON_DEVICE(dweight, sample_taps_weight, dy, x, index, places, dweight);
  const Taps s(index, x.shape[1], x.shape[2], places);
  visit(dy.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *gradient = dy.data<T>(), *from = x.data<T>();
    T* to = dweight.data<T>();
    parallel_for(s.n * s.q, s.grain(s.c * s.k), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t image = row / s.q, q = row % s.q;
        for (int64_t i = row * s.k; i < (row + 1) * s.k; ++i) {
          const int64_t at = s.here(i);
          T sum = 0;
          if (at >= 0)
            for (int64_t c = 0; c < s.c; ++c)
              sum += gradient[(image * s.c + c) * s.q + q] * from[(image * s.c + c) * s.part + at];
          to[i] = sum;
        }
      }
    });
  });
}

}  // namespace holon::kernels
