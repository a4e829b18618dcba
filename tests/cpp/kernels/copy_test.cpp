#include "holon/kernels/copy.h"

#include <algorithm>

#include "tests/cpp/kernels/util.h"

namespace holon::kernels::testing {
namespace {

TEST(Copy, EveryLayoutOfEveryElementSize) {
  on_every_isa([] {
    Noise noise;
    for (DType dtype : kAllTypes)
      for (const Dims& shape : {Dims{}, Dims{7}, Dims{5, 0, 3}, Dims{33, 50}, Dims{3, 17, 19}, Dims{2, 3, 4, 5}})
        for (Layout from : kAllLayouts)
          for (Layout to : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced}) {
            Array src = random(shape, dtype, from, noise, 0, 100), dst = make(shape, dtype, to);
            copy(src, dst);
            each(shape,
                 [&](const Dims& i) { ASSERT_EQ(get(dst, i), get(src, i)) << name(dtype) << " at " << i.str(); });
          }
  });
}

TEST(Copy, ConvertsBetweenAllTypes) {
  on_every_isa([] {
    for (DType from : kAllTypes)
      for (DType to : kAllTypes)
        for (Layout layout : {Layout::kContiguous, Layout::kSliced, Layout::kTransposed}) {
          Array src = make({3, 29}, from, layout), dst = make({3, 29}, to);
          int k = 0;
          each(src.shape, [&](const Dims& i) { put(src, i, is_floating(from) ? 0.75 * k++ : k++); });
          copy(src, dst);
          each(src.shape, [&](const Dims& i) {
            double v = get(src, i);
            double want = to == boolean ? v != 0 : is_floating(to) ? v : std::trunc(v);
            ASSERT_NEAR(get(dst, i), want, want * epsilon(to)) << name(from) << " to " << name(to) << " at " << i.str();
          });
        }
  });
}

TEST(Copy, HalfPrecisionRoundsToNearestEven) {
  on_every_isa([] {
    std::vector<double> values = {0,
                                  1,
                                  -1,
                                  65504,
                                  65519.9,
                                  65520,
                                  -1e9,
                                  6e-8,
                                  5.9604644775390625e-8,
                                  2.9e-8,
                                  6.1e-5,
                                  1.00048828125,
                                  1.00146484375,
                                  INFINITY,
                                  NAN};
    Array src = of(values, float32), half = make(src.shape, float16), brain = make(src.shape, bfloat16);
    copy(src, half);
    copy(src, brain);
    for (size_t i = 0; i < values.size(); ++i) {
      const Dims at{static_cast<int64_t>(i)};
      expect_near(get(half, at), static_cast<float>(Float16(static_cast<float>(values[i]))), 0, 0,
                  "float16 " + std::to_string(values[i]));
      expect_near(get(brain, at), static_cast<float>(BFloat16(static_cast<float>(values[i]))), 0, 0,
                  "bfloat16 " + std::to_string(values[i]));
    }
    Array back = make(src.shape, float32);
    copy(half, back);
    for (size_t i = 0; i < values.size(); ++i)
      expect_near(get(back, {static_cast<int64_t>(i)}), get(half, {static_cast<int64_t>(i)}), 0, 0, "back");
  });
}

TEST(Copy, EveryHalfSurvivesTheWayThroughFloat) {
  on_every_isa([] {
    Array half = make({65536}, float16), wide = make({65536}, float32), back = make({65536}, float16);
    for (int i = 0; i < 65536; ++i) half.data<uint16_t>()[i] = static_cast<uint16_t>(i);
    copy(half, wide);
    copy(wide, back);
    for (int i = 0; i < 65536; ++i) {
      if ((i & 0x7fff) > 0x7c00) {
        ASSERT_TRUE(std::isnan(wide.data<float>()[i])) << i;
        continue;
      }
      ASSERT_EQ(back.data<uint16_t>()[i], i);
    }
  });
}

TEST(Copy, RawStridesInBytes) {
  // Elements of 3 bytes: no dtype has that size.
  std::vector<uint8_t> src(60), dst(60, 255);
  for (int i = 0; i < 60; ++i) src[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
  const int64_t shape[] = {4, 5}, ss[] = {15, 3}, ds[] = {3, 12};
  copy_bytes_strided(dst.data(), ds, src.data(), ss, shape, 3);
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 5; ++j)
      for (size_t b = 0; b < 3; ++b) EXPECT_EQ(dst[i * 3 + j * 12 + b], src[i * 15 + j * 3 + b]);
  const int64_t empty[] = {4, 0};
  copy_bytes_strided(nullptr, ds, nullptr, ss, empty, 3);
}

TEST(Copy, LargeTranspositionOnSeveralThreads) {
  Array src = make({700, 900}, float32, Layout::kTransposed), dst = make({700, 900}, float32);
  each(src.shape, [&](const Dims& i) { put(src, i, static_cast<double>(i[0] * 900 + i[1])); });
  copy(src, dst);
  for (int64_t k = 0; k < 700 * 900; ++k) ASSERT_EQ(dst.data<float>()[k], static_cast<float>(k));
}

TEST(Fill, AnyLayoutAndType) {
  for (DType dtype : kAllTypes)
    for (Layout layout : {Layout::kContiguous, Layout::kTransposed, Layout::kSliced}) {
      Array a = make({5, 6, 7}, dtype, layout);
      fill(a, 3);
      each(a.shape, [&](const Dims& i) { ASSERT_EQ(get(a, i), dtype == boolean ? 1 : 3); });
      fill(a, 0.0);
      each(a.shape, [&](const Dims& i) { ASSERT_EQ(get(a, i), 0); });
    }
  Array big = make({2}, int64);
  fill(big, INT64_MAX);
  EXPECT_EQ(big.data<int64_t>()[1], INT64_MAX);
  Array sliced = make({3, 4}, float32, Layout::kSliced);
  std::fill_n(reinterpret_cast<float*>(sliced.storage->data()), 63, 7.f);
  fill(sliced, 1.5);
  int changed = 0;
  for (int i = 0; i < 63; ++i) changed += reinterpret_cast<float*>(sliced.storage->data())[i] == 1.5f;
  EXPECT_EQ(changed, 12);
}

}  // namespace
}  // namespace holon::kernels::testing
