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

constexpr QuantizedFormat kInt8 = QuantizedFormat::kInt8, kInt4 = QuantizedFormat::kInt4,
                          kMxfp4 = QuantizedFormat::kMxfp4;

double scale_of(const uint8_t* block, int64_t size, QuantizedFormat format) {
  if (format == kMxfp4) return std::ldexp(1.0, block[16] - 127);
  const uint8_t* end = block + (format == kInt8 ? size : size / 2);
  BFloat16 scale;
  scale.bits = static_cast<uint16_t>(end[0] | end[1] << 8);
  return scale;
}

// The number i of a block, by the form that the header describes.
double number(const uint8_t* block, int64_t size, QuantizedFormat format, int64_t i) {
  const double scale = scale_of(block, size, format);
  if (format == kInt8) return scale * static_cast<int8_t>(block[i]);
  const int code = i < size / 2 ? block[i] & 15 : block[i - size / 2] >> 4;
  if (format == kInt4) return scale * (code - 8);
  const double magnitude = (code & 7) < 4 ? (code & 7) / 2.0 : std::vector<double>{2, 3, 4, 6}[code & 3];
  return code & 8 ? -scale * magnitude : scale * magnitude;
}

Array quantized(const Array& x, QuantizedFormat format) {
  Dims shape = x.shape;
  shape.back() = quantized_block_bytes(shape.back(), format);
  Array out = Array::empty(shape, DType::kUInt8);
  quantize(x, format, out);
  return out;
}

TEST(Quantized, NumbersAreOffByHalfAScaleAtMost) {
  for (QuantizedFormat format : {kInt4, kInt8})
    for (int64_t size : {2, 6, 16, 32, 48, 100, 128}) {
      Array x = floats({9, 5, size}, size);
      for (int64_t i = 0; i < size; ++i) x.data<float>()[i] = 0;                      // a group of zeros
      for (int64_t i = 0; i < size; ++i) x.data<float>()[size + i] *= 1e-30f;         // tiny ones
      for (int64_t i = 0; i < size; ++i) x.data<float>()[2 * size + i] *= 1e37f;      // huge ones
      for (int64_t i = 0; i < size; ++i) x.data<float>()[3 * size + i] = i ? 0 : -3;  // one of them
      const Array q = quantized(x, format);
      Array back = Array::empty(x.shape, DType::kFloat32);
      dequantize(q, format, back);
      for (int64_t g = 0; g < 45; ++g) {
        const uint8_t* block = q.data<uint8_t>() + g * q.shape.back();
        for (int64_t i = 0; i < size; ++i) {
          const double wanted = x.data<float>()[g * size + i], kept = number(block, size, format, i);
          EXPECT_LE(std::abs(kept - wanted), scale_of(block, size, format) / 2 * (1 + 1e-6))
              << name(format) << " " << size;
          EXPECT_EQ(static_cast<double>(back.data<float>()[g * size + i]),
                    static_cast<double>(static_cast<float>(kept)));
        }
      }
    }
}

// The definition: the exponent of the largest number less 2, and the nearest of E2M1's numbers, ties to even.
TEST(Quantized, Mxfp4) {
  const std::vector<double> numbers{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  auto nearest = [&](double x) {
    size_t best = 0;
    for (size_t i = 1; i < numbers.size(); ++i) {
      const double apart = std::abs(std::abs(x) - numbers[i]), before = std::abs(std::abs(x) - numbers[best]);
      if (apart < before || (apart == before && i % 2 == 0)) best = i;
    }
    return std::copysign(numbers[best], x);
  };
  for (int i = -400; i <= 400; ++i) {
    const float x = static_cast<float>(i) / 64;
    EXPECT_EQ(from_float4(to_float4(x)), nearest(x)) << x;
    EXPECT_EQ(std::signbit(from_float4(to_float4(x))), std::signbit(x)) << x;
  }
  EXPECT_EQ(from_float4(to_float4(1e30f)), 6);
  Array x = floats({6, 32}, 3);
  for (int i = 0; i < 32; ++i) {
    x.data<float>()[i] = 0;
    x.data<float>()[32 + i] *= 1e-39f;  // the scale's smallest exponent
    x.data<float>()[64 + i] *= 1e38f;
    x.data<float>()[96 + i] = i ? 0.1f : 7.9f;  // 7.9 is beyond 6 * 2^0
  }
  const Array q = quantized(x, kMxfp4);
  EXPECT_EQ(q.shape, (Dims{6, 17}));
  for (int64_t g = 0; g < 6; ++g) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x.data<float>()[g * 32 + i]));
    const double scale = std::ldexp(1.0, largest == 0 ? -127 : std::max(std::ilogb(largest) - 2, -127));
    for (int64_t i = 0; i < 32; ++i)
      EXPECT_EQ(number(q.data<uint8_t>() + g * 17, 32, kMxfp4, i),
                scale * nearest(x.data<float>()[g * 32 + i] / scale));
  }
}

TEST(Quantized, NumbersThatAreNotFiniteAreErrors) {
  Array x = floats({3, 8}, 1);
  x.data<float>()[9] = std::numeric_limits<float>::infinity();
  EXPECT_NE(value_error_of([&] { quantized(x, kInt4); }).find("infinite or NaN"), std::string::npos);
  x.data<float>()[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(value_error_of([&] { quantized(x, kInt8); }).find("infinite or NaN"), std::string::npos);
}

// Rows of x times w and the bias, in double.
std::vector<double> product(const Array& x, const Array& w, const Array* bias, QuantizedFormat format) {
  const int64_t n = w.shape[0], groups = w.shape[1], size = x.shape.back(), rows = x.numel() / (groups * size);
  std::vector<double> y;
  const Array from = as(contiguous(x), DType::kFloat64);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j) {
      double sum = bias ? as(*bias, DType::kFloat64).data<double>()[j] : 0;
      for (int64_t g = 0; g < groups; ++g)
        for (int64_t i = 0; i < size; ++i)
          sum += from.data<double>()[(r * groups + g) * size + i] *
              number(w.data<uint8_t>() + (j * groups + g) * w.shape[2], size, format, i);
      y.push_back(sum);
    }
  return y;
}

void expect_product(const Array& x, const Array& w, const Array* bias, QuantizedFormat format, double tolerance) {
  Dims shape = x.shape;
  shape.resize(x.ndim() - 1);
  shape.back() = w.shape[0];
  Array y = Array::empty(shape, x.dtype);
  fill(y, std::nan(""));
  quantized_linear(x, w, bias, format, y);
  const std::vector<double> wanted = product(x, w, bias, format);
  const Array found = as(y, DType::kFloat64);
  double largest = 1;
  for (double v : wanted) largest = std::max(largest, std::abs(v));
  for (int64_t i = 0; i < y.numel(); ++i)
    ASSERT_NEAR(found.data<double>()[i], wanted[static_cast<size_t>(i)], tolerance * largest)
        << name(format) << ", x " << x.shape << ", w " << w.shape << ", element " << i;
}

TEST(Quantized, ProductsOfAllShapes) {
  for (QuantizedFormat format : {kInt4, kInt8, kMxfp4})
    for (int64_t size : {2, 6, 8, 16, 32, 64, 96, 128, 150}) {
      if (!fits_format(size, format)) continue;
      for (int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 40})
        for (int64_t n : {1, 7, 33}) {
          const int64_t groups = 1 + (rows + n) % 4;
          const Array w = quantized(floats({n, groups, size}, n), format), x = floats({rows, groups, size}, rows);
          const Array bias = floats({n}, 3);
          expect_product(x, w, n == 7 ? nullptr : &bias, format, 2e-6);
        }
    }
}

TEST(Quantized, OtherDtypesAndStrides) {
  for (QuantizedFormat format : {kInt4, kInt8, kMxfp4})
    for (int64_t rows : {1, 3, 20}) {
      const Array w = quantized(floats({19, 3, 32}, 2), format), x = floats({rows, 3, 32}, 5), bias = floats({19}, 3);
      for (auto [dtype, tolerance] :
           {std::pair{DType::kFloat64, 1e-12}, {DType::kFloat16, 2e-3}, {DType::kBFloat16, 2e-2}}) {
        const Array b = as(bias, dtype);
        expect_product(as(x, dtype), w, &b, format, tolerance);
      }
      // Rows that are apart, a reversed bias, axes in front.
      const Array wide = floats({2, rows, 6, 32}, 8), every = wide.view({2, rows, 3, 32}, wide.strides, 32);
      const Array turned = bias.view({19}, {-1}, 18);
      expect_product(every, w, &turned, format, 2e-6);
    }
}

TEST(Quantized, GradientsOfInputsOfAllShapes) {
  for (auto [dtype, tolerance] :
       {std::pair{DType::kFloat32, 2e-6}, {DType::kFloat64, 1e-12}, {DType::kFloat16, 2e-3}, {DType::kBFloat16, 1e-2}})
    for (QuantizedFormat format : {kInt4, kInt8})
      // The last one is dequantised in several parts.
      for (auto [rows, n, groups, size] : {std::array<int64_t, 4>{1, 7, 3, 6}, {9, 33, 2, 32}, {5, 700, 40, 64}}) {
        const Array w = quantized(floats({n, groups, size}, n), format);
        const Array wide = as(floats({2, rows, n + 1}, 5), dtype);
        const Array dy = wide.view({2, rows, n}, wide.strides, 1);  // rows that are apart
        Array found = Array::empty({2, rows, groups, size}, dtype);
        fill(found, std::nan(""));
        quantized_linear_input(dy, w, format, found);
        const Array from = as(contiguous(dy), DType::kFloat64), to = as(found, DType::kFloat64);
        double apart = 0, largest = 1;
        for (int64_t r = 0; r < 2 * rows; ++r)
          for (int64_t g = 0; g < groups; ++g)
            for (int64_t i = 0; i < size; i += 5) {
              double sum = 0;
              for (int64_t j = 0; j < n; ++j)
                sum += from.data<double>()[r * n + j] *
                    number(w.data<uint8_t>() + (j * groups + g) * w.shape[2], size, format, i);
              apart = std::max(apart, std::abs(sum - to.data<double>()[(r * groups + g) * size + i]));
              largest = std::max(largest, std::abs(sum));
            }
        EXPECT_LT(apart, tolerance * largest) << name(format) << ", " << n << " outputs, " << name(dtype);
      }
  const Array none = Array::empty({0, 2, 18}, DType::kUInt8), dy = Array::empty({3, 0}, DType::kFloat32);
  Array zeros = Array::empty({3, 2, 32}, DType::kFloat32);
  quantized_linear_input(dy, none, kInt4, zeros);
  for (int64_t i = 0; i < zeros.numel(); ++i) EXPECT_EQ(zeros.data<float>()[i], 0);
}

// By the definition of quantized.h, where the machine multiplies bytes: each group of a row is rounded to 8 bits.
TEST(Quantized, RowsOfBfloat16AreMultipliedAsBytes) {
#ifdef HOLON_HAVE_X86_LEVELS
  const bool bytes = instruction_level() == 2 && __builtin_cpu_supports("avx512vnni");
#else
  const bool bytes = false;
#endif
  for (QuantizedFormat format : {kInt4, kMxfp4})
    for (int64_t groups : {1, 2, 3, 8})
      for (int64_t rows : {1, 2, 5})
        for (int64_t n : {1, 2, 9, 30}) {
          const Array w = quantized(floats({n, groups, 32}, n), format);
          const Array x = as(as(floats({rows, groups, 32}, rows + groups), DType::kBFloat16), DType::kFloat32);
          for (int64_t i = 0; i < 32; ++i) x.data<float>()[i] = 0;
          Array rounded = as(x, DType::kFloat32);
          for (int64_t g = 0; bytes && g < rows * groups; ++g) {
            float* p = rounded.data<float>() + g * 32;
            float largest = 0;
            for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(p[i]));
            for (int i = 0; i < 32 && largest > 0; ++i) p[i] = std::nearbyint(p[i] * (127 / largest)) * (largest / 127);
          }
          Array y = Array::empty({rows, n}, DType::kBFloat16);
          quantized_linear(as(x, DType::kBFloat16), w, nullptr, format, y);
          const std::vector<double> wanted = product(rounded, w, nullptr, format);
          const Array found = as(y, DType::kFloat64);
          double largest = 1;
          for (double v : wanted) largest = std::max(largest, std::abs(v));
          for (int64_t i = 0; i < y.numel(); ++i)
            ASSERT_NEAR(found.data<double>()[i], wanted[static_cast<size_t>(i)],
                        std::abs(wanted[static_cast<size_t>(i)]) / 256 + 1e-6 * largest)
                << name(format) << " " << rows << " " << groups << " " << n;
        }
}

TEST(Quantized, RowsThatAreNotFiniteStaySo) {
  const Array w = quantized(floats({5, 2, 32}, 1), kInt4), x = floats({2, 2, 32}, 3);
  x.data<float>()[3] = std::numeric_limits<float>::infinity();
  Array y = Array::empty({2, 5}, DType::kBFloat16);
  quantized_linear(as(x, DType::kBFloat16), w, nullptr, kInt4, y);
  const Array found = as(y, DType::kFloat32);
  for (int64_t j = 0; j < 5; ++j) {
    EXPECT_FALSE(std::isfinite(found.data<float>()[j]));
    EXPECT_TRUE(std::isfinite(found.data<float>()[5 + j]));
  }
}

TEST(Quantized, NoGroupsLeaveTheBias) {
  const Array w = Array::empty({3, 0, 18}, DType::kUInt8), x = Array::empty({2, 0, 32}, DType::kFloat32),
              bias = floats({3}, 1);
  Array y = Array::empty({2, 3}, DType::kFloat32);
  quantized_linear(x, w, &bias, kInt4, y);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.data<float>()[i], bias.data<float>()[i % 3]);
  quantized_linear(x, w, nullptr, kInt4, y);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y.data<float>()[i], 0);
}

TEST(Quantized, EveryThreadCountGivesTheSame) {
  const Array w = quantized(floats({517, 16, 32}, 2), kInt4), x = floats({3, 16, 32}, 5);
  const int before = num_threads();
  std::vector<Array> found;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    found.push_back(Array::empty({3, 517}, DType::kFloat32));
    quantized_linear(x, w, nullptr, kInt4, found.back());
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
  for (QuantizedFormat format : {kInt4, kInt8, kMxfp4})
    for (int64_t size : {2, 8, 16, 32, 128}) {
      if (!fits_format(size, format)) continue;
      const Array w = quantized(floats({11, 3, size}, 2), format), x = floats({7, 3, size}, 5);
      const std::vector<double> wanted = product(x, w, nullptr, format);
      for (auto& loops : builds) {
        std::vector<float> y(77);
        loops.rows({w.data<uint8_t>(), 3, size, format}, x.data<float>(), 3 * size, 7, 0, 11, y.data(), 11);
        for (size_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y[i], wanted[i], 1e-4) << name(format) << " " << size;
        std::vector<float> numbers(static_cast<size_t>(33 * size));
        loops.numbers(w.data<uint8_t>(), 33, size, format, numbers.data());
        std::vector<uint16_t> halves(numbers.size());
        loops.bf16_numbers(w.data<uint8_t>(), 33, size, format, halves.data());
        for (int64_t i = 0; i < 33 * size; ++i) {
          const auto wanted =
              static_cast<float>(number(w.data<uint8_t>() + i / size * w.shape[2], size, format, i % size));
          EXPECT_EQ(numbers[static_cast<size_t>(i)], wanted);
          EXPECT_EQ(halves[static_cast<size_t>(i)], BFloat16(wanted).bits);
        }
      }
    }
}

}  // namespace
}  // namespace holon::kernels
