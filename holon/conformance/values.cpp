#include "holon/conformance/values.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "holon/base/context.h"
#include "holon/base/fmt.h"
#include "holon/global/slice.h"
#include "holon/kernels/copy.h"

namespace holon::conformance {

uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t z = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull + c * 0x94d049bb133111ebull + 1;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

std::vector<double> values_of(const Array& given) {
  Array a = given.device.is_host() ? given : on_device(given, {});
  if (is_float8(a.dtype)) a = kernels::converted(a, float32);
  std::vector<double> v(static_cast<size_t>(a.numel()));
  visit_dtype(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    Dims at = Dims::filled(a.ndim(), 0);
    for (auto& e : v) {
      int64_t where = 0;
      for (int d = 0; d < a.ndim(); ++d) where += at[d] * a.strides[d];
      T x = a.data<T>()[where];
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        e = static_cast<float>(x);
      else
        e = static_cast<double>(x);
      for (int d = a.ndim() - 1; d >= 0 && ++at[d] == a.shape[d]; --d) at[d] = 0;
    }
  });
  return v;
}

Array array_of(const std::vector<double>& values, const Dims& shape, DType dtype) {
  if (is_float8(dtype)) return kernels::converted(array_of(values, shape, float32), dtype);
  Array a = Array::empty(shape, dtype);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (size_t e = 0; e < values.size(); ++e) {
      if constexpr (std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>)
        a.data<T>()[e] = T(static_cast<float>(values[e]));
      else
        a.data<T>()[e] = static_cast<T>(values[e]);
    }
  });
  return a;
}

Array on_device(const Array& a, Device device) {
  Array there = Array::empty(a.shape, a.dtype, device);
  kernels::copy(a, there);
  return there;
}

Array part_of(const std::vector<double>& values, const Dims& shape, DType dtype, const Placement& placement,
              const NdSbp& sbp, int index) {
  Dims coordinate = placement.coordinate(index);
  uint64_t addend = 0, n_addends = 1;
  for (int a = 0; a < sbp.size(); ++a)
    if (sbp[a].is_partial()) {
      addend = addend * static_cast<uint64_t>(placement.hierarchy()[a]) + static_cast<uint64_t>(coordinate[a]);
      n_addends *= static_cast<uint64_t>(placement.hierarchy()[a]);
    }
  auto noise = [&](uint64_t k, size_t e) {
    return (static_cast<double>(mix(e, k, 5) % 129) - 64) / (is_floating(dtype) ? 64 : 1);
  };
  Region s = region_of(shape, placement, sbp, index);
  Dims strides = contiguous_strides(shape), at = Dims::filled(shape.size(), 0);
  std::vector<double> part(static_cast<size_t>(s.shape.numel()));
  for (auto& v : part) {
    size_t e = 0;
    for (int d = 0; d < shape.size(); ++d) e += static_cast<size_t>((s.offset[d] + at[d]) * strides[d]);
    if (addend + 1 < n_addends) {
      v = noise(addend, e);
    } else {
      v = values[e];
      for (uint64_t k = 0; k + 1 < n_addends; ++k) v -= noise(k, e);
    }
    for (int d = shape.size() - 1; d >= 0 && ++at[d] == s.shape[d]; --d) at[d] = 0;
  }
  return on_device(array_of(part, s.shape, dtype), placement.device());
}

std::string differs(const std::vector<double>& got, const std::vector<double>& want, double rtol) {
  if (got.size() != want.size()) return fmt::format("{} elements, not {}", got.size(), want.size());
  double largest = 1;
  for (double w : want)
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  for (size_t e = 0; e < want.size(); ++e) {
    if (got[e] == want[e] || (std::isnan(got[e]) && std::isnan(want[e]))) continue;
    // Terms that cancel leave an error of the size of the largest ones.
    if (!(std::abs(got[e] - want[e]) <= rtol * std::abs(want[e]) + 0.2 * rtol * largest))
      return fmt::format("element {} is {}, not {}", e, got[e], want[e]);
  }
  return {};
}

double tolerance(DType dtype) {
  if (Context::current().layout_free() && dtype == float32) return 0;
  return !is_floating(dtype) ? 0 : dtype == float64 ? 1e-12 : dtype == float32 ? 1e-5 : 1e-2;
}

}  // namespace holon::conformance
