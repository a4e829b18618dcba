// Tensors made of a program's numbers, and numbers read out of tensors.
#pragma once

#include <concepts>
#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "holon/tensor/tensor.h"

namespace holon {

// With a placement and an sbp every rank passes the same values and keeps its part; nothing is sent.
struct TensorOptions {
  Placement placement{};
  NdSbp sbp{};
  std::optional<DType> dtype{};
  bool requires_grad = false;
};

// The values, row by row, as a tensor of that shape, which owns a copy. Its dtype is theirs, unless the options have
// one. Errors: as many values as the shape has elements are needed; one of placement and sbp alone.
template <class T>
Tensor tensor(std::span<const T> values, const Dims& shape, const TensorOptions& options = {});
template <class T>
Tensor tensor(const std::vector<T>& values, const Dims& shape, const TensorOptions& options = {}) {
  return tensor(std::span<const T>(values), shape, options);
}

// A number, a row or rows of numbers as they are in a program: tensor(3.5), tensor({1, 2, 3}), tensor({{0.5, 1.0},
// {1.5, 2.0}}). Floating-point ones become float32, whole ones int64. Errors: rows of unlike lengths; see above.
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(T value, const TensorOptions& options = {});
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<T> values, const TensorOptions& options = {});
template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<std::initializer_list<T>> rows,
                                               const TensorOptions& options = {});

// The global tensor whose whole value is `alike`, a local tensor with the same values on every rank: each keeps a copy
// of its part, and nothing is sent. As a partial sum the value is on the first rank. Errors: a global tensor; an
// nd_sbp that does not fit.
Tensor place(const Tensor& alike, const Placement& placement, const NdSbp& nd_sbp);

// The whole value, row by row, as numbers of type T. Collective for a global tensor.
template <class T>
std::vector<T> to_vector(const Tensor& t);

namespace detail {
Tensor from_array(Array values, const TensorOptions& options);
// Errors: `given` is not the number of elements of the shape.
void check_count(size_t given, const Dims& shape);
// Errors: the row is not as long as the first.
void check_row(size_t row, size_t found, size_t expected);
// Contiguous, and of that dtype.
Tensor whole_as(const Tensor& t, DType dtype);
template <class T>
using Literal =
    std::conditional_t<std::is_floating_point_v<T>, float, std::conditional_t<std::same_as<T, bool>, bool, int64_t>>;

template <class T>
Tensor from_rows(std::initializer_list<std::initializer_list<T>> rows, const Dims& shape,
                 const TensorOptions& options) {
  Array a = Array::empty(shape, DTypeOf<Literal<T>>::value);
  auto* to = a.data<Literal<T>>();
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto& row = rows.begin()[r];
    check_row(r, row.size(), rows.begin()->size());
    for (T v : row) *to++ = static_cast<Literal<T>>(v);
  }
  return from_array(std::move(a), options);
}
}  // namespace detail

template <class T>
Tensor tensor(std::span<const T> values, const Dims& shape, const TensorOptions& options) {
  detail::check_count(values.size(), shape);
  Array a = Array::empty(shape, DTypeOf<T>::value);
  T* to = a.data<T>();
  for (const T& v : values) *to++ = v;
  return detail::from_array(std::move(a), options);
}

template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(T value, const TensorOptions& options) {
  return detail::from_rows<T>({{value}}, {}, options);
}

template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<T> values, const TensorOptions& options) {
  return detail::from_rows<T>({values}, {static_cast<int64_t>(values.size())}, options);
}

template <class T>
requires std::is_arithmetic_v<T> Tensor tensor(std::initializer_list<std::initializer_list<T>> rows,
                                               const TensorOptions& options) {
  const size_t width = rows.size() ? rows.begin()->size() : 0;
  return detail::from_rows<T>(rows, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(width)}, options);
}

template <class T>
std::vector<T> to_vector(const Tensor& t) {
  Tensor whole = detail::whole_as(t, DTypeOf<T>::value);
  auto data = whole.data<T>();
  return {data.begin(), data.end()};
}

}  // namespace holon
