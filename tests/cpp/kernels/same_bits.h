// Arrays whose bits are compared.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "holon/array/array.h"
#include "holon/kernels/add_n.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/sum_tree.h"

namespace holon::kernels {

inline std::mt19937 rng(7);

// Of many magnitudes, so that another order of a sum gives other bits.
inline Array random_array(const Dims& shape) {
  Array a = Array::empty(shape, DType::kFloat32);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < a.numel(); ++i) a.data<float>()[i] = normal(rng) * std::exp2(normal(rng) * 4);
  return a;
}

inline Array rows_of(const Array& a, int64_t begin, int64_t end) {
  Dims shape = a.shape;
  shape[0] = end - begin;
  return a.view(shape, a.strides, begin * a.strides[0]);
}

inline void expect_same_bits(const Array& a, const Array& b) {
  ASSERT_EQ(a.shape, b.shape);
  const Array x = contiguous(a), y = contiguous(b);
  for (int64_t i = 0; i < x.numel(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(x.data<float>()[i]), std::bit_cast<uint32_t>(y.data<float>()[i]))
        << "element " << i;
}

// Parts as 2, 4 and 8 ranks have them, joined as a partial sum of them is. A rank has one of `most` or its multiple.
template <class F>
void expect_parts_to_join(int64_t rows, int64_t most, const Array& whole, F&& sum_of_rows) {
  for (int64_t parts = 2; parts <= 8 && most % parts == 0; parts *= 2) {
    std::vector<Array> of_ranks;
    std::vector<const void*> sources;
    for (int64_t r = 0; r < parts; ++r) of_ranks.push_back(sum_of_rows(rows * r / parts, rows * (r + 1) / parts));
    for (auto& a : of_ranks) sources.push_back(a.bytes());
    Array joined = Array::empty(whole.shape, DType::kFloat32);
    add_n(joined.bytes(), sources, joined.numel(), DType::kFloat32);
    expect_same_bits(joined, whole);
  }
}

template <class F>
void expect_parts_to_join(int64_t rows, const Array& whole, F&& sum_of_rows) {
  expect_parts_to_join(rows, subtrees(rows), whole, sum_of_rows);
}

}  // namespace holon::kernels
