// Arrays for tests of kernels: made in any layout, read and written element by element as double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "holon/array/array.h"
#include "holon/base/error.h"
#include "holon/kernels/cpu/table.h"

namespace holon::kernels::testing {

inline const std::vector<DType> kAllTypes = {boolean, uint8, int8, int32, int64, float16, bfloat16, float32, float64};

// A small generator, so that failures repeat.
struct Noise {
  uint64_t state = 0x9e3779b97f4a7c15ull;
  double next(double low, double high) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return low + (high - low) * static_cast<double>(state >> 11) * 0x1p-53;
  }
};

inline std::byte* address(const Array& a, const Dims& index) {
  int64_t at = 0;
  for (int i = 0; i < a.ndim(); ++i) at += index[i] * a.strides[i];
  return a.bytes() + at * static_cast<int64_t>(size_bytes(a.dtype));
}
inline double get(const Array& a, const Dims& index) {
  return visit_dtype(a.dtype, [&](auto tag) {
    return static_cast<double>(*reinterpret_cast<typename decltype(tag)::type*>(address(a, index)));
  });
}
inline void put(const Array& a, const Dims& index, double v) {
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, bool>)
      *reinterpret_cast<T*>(address(a, index)) = v != 0;
    else if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
      *reinterpret_cast<T*>(address(a, index)) = T(static_cast<float>(v));
    else
      *reinterpret_cast<T*>(address(a, index)) = static_cast<T>(v);
  });
}

// Calls f(index) for every index of a shape, the last axis fastest.
inline void each(const Dims& shape, const std::function<void(const Dims&)>& f) {
  if (shape.numel() == 0) return;
  Dims index = Dims::filled(shape.size(), 0);
  for (;;) {
    f(index);
    int i = shape.size() - 1;
    while (i >= 0 && ++index[i] == shape[i]) index[i--] = 0;
    if (i < 0) return;
  }
}

enum class Layout { kContiguous, kTransposed, kSliced, kBroadcast };
inline const std::vector<Layout> kAllLayouts = {Layout::kContiguous, Layout::kTransposed, Layout::kSliced,
                                                Layout::kBroadcast};

// kTransposed has its axes in reverse order in memory; kSliced is a window with gaps; kBroadcast repeats its first
// axis.
inline Array make(const Dims& shape, DType dtype, Layout layout = Layout::kContiguous) {
  const int n = shape.size();
  if (layout == Layout::kTransposed) {
    Dims strides = shape;
    int64_t step = 1;
    for (int i = 0; i < n; ++i) {
      strides[i] = step;
      step *= shape[i];
    }
    return Array::empty_strided(shape, strides, dtype);
  }
  if (layout == Layout::kSliced) {
    Dims big = shape;
    for (int i = 0; i < n; ++i) big[i] = 2 * shape[i] + 1;
    Array whole = Array::empty(big, dtype);
    Dims strides = whole.strides;
    for (int i = 0; i < n; ++i) strides[i] *= 2;
    return whole.view(shape, strides, n ? whole.strides[0] : 0);
  }
  if (layout == Layout::kBroadcast && n > 0) {
    Dims one = shape;
    one[0] = 1;
    Array a = Array::empty(one, dtype);
    Dims strides = a.strides;
    strides[0] = 0;
    return a.view(shape, strides);
  }
  return Array::empty(shape, dtype);
}

inline Array random(const Dims& shape, DType dtype, Layout layout, Noise& noise, double low, double high) {
  Array a = make(shape, dtype, layout);
  each(shape, [&](const Dims& i) {
    double v = noise.next(low, high);
    put(a, i, is_floating(dtype) ? v : std::floor(v));
  });
  return a;
}

inline Array of(const std::vector<double>& values, DType dtype, Dims shape = {}) {
  if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
  Array a = Array::empty(shape, dtype);
  int64_t k = 0;
  each(shape, [&](const Dims& i) { put(a, i, values[static_cast<size_t>(k++)]); });
  return a;
}

// The index into an array that broadcasts to the shape of `index`, aligned at the right.
inline Dims aligned(const Array& a, const Dims& index) {
  Dims out;
  for (int i = 0; i < a.ndim(); ++i) {
    const int64_t at = index[index.size() - a.ndim() + i];
    out.push_back(a.shape[i] == 1 ? 0 : at);
  }
  return out;
}

// Rounding of the dtype, relative to 1.
inline double epsilon(DType dtype) {
  return dtype == bfloat16 ? 0x1p-8 : dtype == float16 ? 0x1p-11 : dtype == float32 ? 0x1p-23 : 0x1p-52;
}

// Half the distance between the numbers next to 0.
inline double smallest(DType dtype) { return dtype == float16 ? 3e-8 : 0; }

inline void expect_near(double got, double want, double relative, double absolute, const std::string& where) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << where << ": got " << got;
  } else if (std::isinf(want)) {
    EXPECT_EQ(got, want) << where;
  } else {
    EXPECT_LE(std::abs(got - want), relative * std::abs(want) + absolute)
        << where << ": got " << got << ", want " << want;
  }
}

// Runs a test body with the loops of every instruction set of this machine.
template <class F>
void on_every_isa(F&& body) {
  const std::string best = table().name;
  for (int i = 0; i < isa_count(); ++i) {
    select_isa(isa_name(i));
    SCOPED_TRACE(std::string("instruction set ") + isa_name(i));
    body();
  }
  select_isa(best.c_str());
}

template <class F>
std::string message_of(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace holon::kernels::testing
