// Quantised weights against plain loops over their bytes.
#include "holon/kernels/quantized.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "error_of.h"
#include "holon/base/parallel.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/cpu/build_choice.h"
#include "holon/kernels/cpu/quantized_loops.h"

namespace holon::kernels {
namespace {

Array floats(const Dims& shape, int64_t seed) {
  Array a = Array::empty(shape, DType::kFloat32);
  for (int64_t i = 0; i < a.numel(); ++i)
    a.data<float>()[i] = static_cast<float>((i * 7919 + seed * 104729) % 2003 - 1001) / 700;
  return a;
}

Array as(const Array& a, DType dtype) {
  Array b = Array::empty(a.shape, dtype);
  copy(a, b);
  return b;
}

// The number i of a block, by the form that the header describes.
double number(const uint8_t* block, int64_t size, int64_t bits, int64_t i) {
  BFloat16 scale;
  const uint8_t* end = block + size * bits / 8;
  scale.bits = static_cast<uint16_t>(end[0] | end[1] << 8);
  int integer = 0;
  if (bits == 8)
    integer = static_cast<int8_t>(block[i]);
  else
    integer = (i < size / 2 ? block[i] & 15 : block[i - size / 2] >> 4) - 8;
  return static_cast<double>(scale) * integer;
}

double scale_of(const uint8_t* block, int64_t size, int64_t bits) {
  BFloat16 scale;
  scale.bits = static_cast<uint16_t>(block[size * bits / 8] | block[size * bits / 8 + 1] << 8);
  return scale;
}

Array quantized(const Array& x, int64_t bits) {
  Dims shape = x.shape;
  shape.back() = quantized_block_bytes(shape.back(), bits);
  Array out = Array::empty(shape, DType::kUInt8);
  quantize(x, bits, out);
  return out;
}

TEST(Quantized, NumbersAreOffByHalfAScaleAtMost) {
  for (int64_t bits : {4, 8})
    for (int64_t size : {2, 6, 16, 32, 48, 100, 128}) {
      Array x = floats({9, 5, size}, size);
      for (int64_t i = 0; i < size; ++i) x.data<float>()[i] = 0;                      // a group of zeros
      for (int64_t i = 0; i < size; ++i) x.data<float>()[size + i] *= 1e-30f;         // tiny ones
      for (int64_t i = 0; i < size; ++i) x.data<float>()[2 * size + i] *= 1e37f;      // huge ones
      for (int64_t i = 0; i < size; ++i) x.data<float>()[3 * size + i] = i ? 0 : -3;  // one of them
      const Array q = quantized(x, bits);
      Array back = Array::empty(x.shape, DType::kFloat32);
      dequantize(q, bits, back);
      for (int64_t g = 0; g < 45; ++g) {
        const uint8_t* block = q.data<uint8_t>() + g * q.shape.back();
        for (int64_t i = 0; i < size; ++i) {
          const double wanted = x.data<float>()[g * size + i], kept = number(block, size, bits, i);
          EXPECT_LE(std::abs(kept - wanted), scale_of(block, size, bits) / 2 * (1 + 1e-6)) << bits << " " << size;
          EXPECT_EQ(static_cast<double>(back.data<float>()[g * size + i]),
                    static_cast<double>(static_cast<float>(kept)));
        }
      }
    }
}

TEST(Quantized, NumbersThatAreNotFiniteAreErrors) {
  Array x = floats({3, 8}, 1);
  x.data<float>()[9] = std::numeric_limits<float>::infinity();
  EXPECT_NE(value_error_of([&] { quantized(x, 4); }).find("infinite or NaN"), std::string::npos);
  x.data<float>()[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(value_error_of([&] { quantized(x, 8); }).find("infinite or NaN"), std::string::npos);
}

// Rows of x times w and the bias, in double.
std::vector<double> product(const Array& x, const Array& w, const Array* bias, int64_t bits) {
  const int64_t n = w.shape[0], groups = w.shape[1], size = x.shape.back(), rows = x.numel() / (groups * size);
  std::vector<double> y;
  const Array from = as(contiguous(x), DType::kFloat64);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias ? as(*bias, DType::kFloat64).data<double>()[j] : 0;
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t i = 0; i < size; ++i)
          sum += from.data<double>()[(r * groups + g) * size + i] *
              number(w.data<uint8_t>() + (j * groups + g) * w.shape[2], size, bits, i);
      y.push_back(sum);
    }
  return y;
}

void expect_product(const Array& x, const Array& w, const Array* bias, int64_t bits, double tolerance) {
  Dims shape = x.shape;
  shape.resize(x.ndim() - 1);
  shape.back() = w.shape[0];
  Array y = Array::empty(shape, x.dtype);
  fill(y, std::nan(""));
  quantized_linear(x, w, bias, bits, y);
  const std::vector<double> wanted = product(x, w, bias, bits);
  const Array found = as(y, DType::kFloat64);
  double largest = 1;
  for (double v : wanted) largest = std::max(largest, std::abs(v));
  for (int64_t i = 0; i < y.numel(); ++i)
    ASSERT_NEAR(found.data<double>()[i], wanted[static_cast<size_t>(i)], tolerance * largest)
        << bits << " bits, x " << x.shape << ", w " << w.shape << ", element " << i;
}

TEST(Quantized, ProductsOfAllShapes) {
  for (int64_t bits : {4, 8})
    for (int64_t size : {2, 6, 8, 16, 32, 64, 96, 128, 150})
      for (int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 40})
        for (int64_t n : {1, 7, 33}) {
          const int64_t groups = 1 + (rows + n) % 4;
          const Array w = quantized(floats({n, groups, size}, n), bits), x = floats({rows, groups, size}, rows);
          const Array bias = floats({n}, 3);
          expect_product(x, w, n == 7 ? nullptr : &bias, bits, 2e-6);
        }
}

TEST(Quantized, OtherDtypesAndStrides) {
  for (int64_t bits : {4, 8})
    for (int64_t rows : {1, 3, 20}) {
      const Array w = quantized(floats({19, 3, 32}, 2), bits), x = floats({rows, 3, 32}, 5), bias = floats({19}, 3);
      for (auto [dtype, tolerance] :
           {std::pair{DType::kFloat64, 1e-12}, {DType::kFloat16, 2e-3}, {DType::kBFloat16, 2e-2}}) {
        const Array b = as(bias, dtype);
        expect_product(as(x, dtype), w, &b, bits, tolerance);
      }
      // Rows that are apart, a reversed bias, axes in front.
      const Array wide = floats({2, rows, 6, 32}, 8), every = wide.view({2, rows, 3, 32}, wide.strides, 32);
      const Array turned = bias.view({19}, {-1}, 18);
      expect_product(every, w, &turned, bits, 2e-6);
    }
}

TEST(Quantized, GradientsOfInputsOfAllShapes) {
  for (auto [dtype, tolerance] :
       {std::pair{DType::kFloat32, 2e-6}, {DType::kFloat64, 1e-12}, {DType::kFloat16, 2e-3}, {DType::kBFloat16, 1e-2}})
    for (int64_t bits : {4, 8})
      // The last one is dequantised in several parts.
      for (auto [rows, n, groups, size] : {std::array<int64_t, 4>{1, 7, 3, 6}, {9, 33, 2, 32}, {5, 700, 40, 64}}) {
        const Array w = quantized(floats({n, groups, size}, n), bits);
        const Array wide = as(floats({2, rows, n + 1}, 5), dtype);
        const Array dy = wide.view({2, rows, n}, wide.strides, 1);  // rows that are apart
        Array found = Array::empty({2, rows, groups, size}, dtype);
        fill(found, std::nan(""));
        quantized_linear_input(dy, w, bits, found);
        const Array from = as(contiguous(dy), DType::kFloat64), to = as(found, DType::kFloat64);
        double apart = 0, largest = 1;
        for (int64_t r = 0; r < 2 * rows; ++r)
          for (int64_t g = 0; g < groups; ++g)
            for (int64_t i = 0; i < size; i += 5) {
              double sum = 0;
              for (int64_t j = 0; j < n; ++j)
                sum += from.data<double>()[r * n + j] *
                    number(w.data<uint8_t>() + (j * groups + g) * w.shape[2], size, bits, i);
              apart = std::max(apart, std::abs(sum - to.data<double>()[(r * groups + g) * size + i]));
              largest = std::max(largest, std::abs(sum));
            }
        EXPECT_LT(apart, tolerance * largest) << bits << " bits, " << n << " outputs, " << name(dtype);
      }
  const Array none = Array::empty({0, 2, 18}, DType::kUInt8), dy = Array::empty({3, 0}, DType::kFloat32);
  Array zeros = Array::empty({3, 2, 32}, DType::kFloat32);
  quantized_linear_input(dy, none, 4, zeros);
  for (int64_t i = 0; i < zeros.numel(); ++i) EXPECT_EQ(zeros.data<float>()[i], 0);
}

TEST(Quantized, NoGroupsLeaveTheBias) {
  const Array w = Array::empty({3, 0, 18}, DType::kUInt8), x = Array::empty({2, 0, 32}, DType::kFloat32),
              bias = floats({3}, 1);
  Array y = Array::empty({2, 3}, DType::kFloat32);
  quantized_linear(x, w, &bias, 4, y);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.data<float>()[i], bias.data<float>()[i % 3]);
  quantized_linear(x, w, nullptr, 4, y);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.data<float>()[i], 0);
}

TEST(Quantized, EveryThreadCountGivesTheSame) {
  const Array w = quantized(floats({517, 16, 32}, 2), 4), x = floats({3, 16, 32}, 5);
  const int before = num_threads();
  std::vector<Array> found;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    found.push_back(Array::empty({3, 517}, DType::kFloat32));
    quantized_linear(x, w, nullptr, 4, found.back());
  }
  set_num_threads(before);
  for (size_t i = 1; i < found.size(); ++i)
    for (int64_t k = 0; k < 3 * 517; ++k) EXPECT_EQ(found[i].data<float>()[k], found[0].data<float>()[k]);
}

// Each build of the loops, those for other machines than this one included.
TEST(Quantized, EveryBuildGivesTheSame) {
  std::vector<QuantizedLoops> builds{base::quantized_loops()};
#ifdef HOLON_HAVE_X86_LEVELS
  if (instruction_level() >= 1) builds.push_back(avx2::quantized_loops());
  if (instruction_level() >= 2) builds.push_back(avx512::quantized_loops());
#endif
  for (int bits : {4, 8})
    for (int64_t size : {2, 8, 16, 32, 128}) {
      const Array w = quantized(floats({11, 3, size}, 2), bits), x = floats({7, 3, size}, 5);
      const std::vector<double> wanted = product(x, w, nullptr, bits);
      for (auto& loops : builds) {
        std::vector<float> y(77);
        loops.rows({w.data<uint8_t>(), 3, size, bits}, x.data<float>(), 3 * size, 7, 0, 11, y.data(), 11);
        for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], wanted[i], 1e-4) << bits << " " << size;
        std::vector<float> numbers(static_cast<size_t>(33 * size));
        loops.numbers(w.data<uint8_t>(), 33, size, bits, numbers.data());
        std::vector<uint16_t> halves(numbers.size());
        loops.bf16_numbers(w.data<uint8_t>(), 33, size, bits, halves.data());
        for (int64_t i = 0; i < 33 * size; ++i) {
          const auto wanted =
              static_cast<float>(number(w.data<uint8_t>() + i / size * w.shape[2], size, bits, i % size));
          EXPECT_EQ(numbers[static_cast<size_t>(i)], wanted);
          EXPECT_EQ(halves[static_cast<size_t>(i)], BFloat16(wanted).bits);
        }
      }
    }
}

}  // namespace
}  // namespace holon::kernels
