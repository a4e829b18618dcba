// Tensors from and to lists of numbers, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "holon/tensor/tensor.h"

namespace holon::testing {

inline Tensor make(const std::vector<double>& values, DType dtype, const Dims& shape) {
  Array a = Array::empty(shape, dtype);
  visit_dtype(dtype, [&]<class T>(TypeTag<T>) {
    for (size_t i = 0; i < values.size(); ++i) a.data<T>()[i] = static_cast<T>(values[i]);
  });
  return Tensor::local(std::move(a));
}

// The elements in logical order, whatever the strides.
inline std::vector<double> values_of(const Array& a) {
  std::vector<double> out;
  Dims at = Dims::filled(a.ndim(), 0);
  for (int64_t i = 0; i < a.numel(); ++i) {
    int64_t offset = 0;
    for (int d = 0; d < a.ndim(); ++d) offset += at[d] * a.strides[d];
    visit_dtype(a.dtype, [&]<class T>(TypeTag<T>) {
      using C = typename DTypeOf<T>::Compute;
      out.push_back(static_cast<double>(static_cast<C>(a.data<T>()[offset])));
    });
    for (int d = a.ndim() - 1; d >= 0 && ++at[d] == a.shape[d]; --d) at[d] = 0;
  }
  return out;
}

// A list without pattern, the same on every machine.
inline std::vector<double> numbers(size_t n, int seed) {
  std::vector<double> out;
  for (size_t i = 0; i < n; ++i)
    out.push_back(std::sin(1.7 * static_cast<double>(i) + seed) +
                  0.1 * std::cos(0.3 * static_cast<double>(i * i) + seed));
  return out;
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    double d = std::abs(a[i] - b[i]);
    most = d > most || std::isnan(d) ? d : most;
  }
  return most;
}

}  // namespace holon::testing
