#include "holon/kernels/regions.h"

#include <gtest/gtest.h>

#include <numeric>

#include "holon/kernels/copy.h"

#include "holon/base/parallel.h"
#include "holon/kernels/cpu/stream.h"

namespace holon::kernels {
namespace {

Array numbers(const Dims& shape, DType dtype) {
  Array a = Array::empty(shape, dtype);
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < a.numel(); ++i) a.data<T>()[i] = static_cast<T>(static_cast<float>(i % 100));
  });
  return a;
}

TEST(CopyRegion, TurnsAxesRound) {
  for (DType dtype : {uint8, int32, int64, float16, float32, float64}) {
    Array a = numbers({3, 4, 5}, dtype);
    Array turned = contiguous(a.view({5, 4, 3}, {1, 5, 20}));
    visit_dtype(dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (int i = 0; i < 5; ++i)
        for (int j = 0; j < 4; ++j)
          for (int k = 0; k < 3; ++k)
            EXPECT_EQ(static_cast<float>(turned.data<T>()[(i * 4 + j) * 3 + k]),
                      static_cast<float>(k * 20 + j * 5 + i));
    });
  }
}

TEST(CopyRegion, ExpandedAndEmptyAxes) {
  Array a = numbers({4}, float32);
  Array rows = contiguous(a.view({3, 4}, {0, 1}));
  for (int i = 0; i < 12; ++i) EXPECT_EQ(rows.data<float>()[i], static_cast<float>(i % 4));
  EXPECT_EQ(contiguous(a.view({0, 4}, {1, 1})).numel(), 0);
  EXPECT_EQ(contiguous(a.view({}, {}, 2)).data<float>()[0], 2.f);
  EXPECT_EQ(contiguous(a).storage, a.storage);
}

TEST(CopyRegion, WritesOnlyTheRegion) {
  Array a = numbers({6, 40}, float32), b = Array::empty({8, 50}, float32);
  for (int64_t i = 0; i < b.numel(); ++i) b.data<float>()[i] = -1;
  for (int64_t width : {1, 7, 40}) {
    copy_region(b.bytes() + (2 * 50 + 3) * 4, b.strides, a.bytes(), a.strides, {6, width}, 4);
    for (int64_t i = 0; i < 8; ++i)
      for (int64_t j = 0; j < 50; ++j) {
        bool inside = i >= 2 && j >= 3 && j < 3 + width;
        EXPECT_EQ(b.data<float>()[i * 50 + j], inside ? static_cast<float>(((i - 2) * 40 + j - 3) % 100) : -1.f);
      }
  }
}

TEST(CopyRegion, PastTheCaches) {
  const int threads = num_threads();
  for (int n : {1, 3})
    for (int64_t width : {5, 300, 1000, 4096}) {
      set_num_threads(n);
      Array a = numbers({5, 5000}, float32), b = Array::empty({7, 5003}, float32);
      for (int64_t i = 0; i < b.numel(); ++i) b.data<float>()[i] = -1;
      copy_region(b.bytes() + (1 * 5003 + 2) * 4, b.strides, a.bytes(), a.strides, {5, width}, 4,
                  kernels::kStreamCopyBytes);
      for (int64_t i = 0; i < 7; ++i)
        for (int64_t j = 0; j < 5003; ++j) {
          bool inside = i >= 1 && i < 6 && j >= 2 && j < 2 + width;
          ASSERT_EQ(b.data<float>()[i * 5003 + j], inside ? static_cast<float>(((i - 1) * 5000 + j - 2) % 100) : -1.f)
              << i << " " << j << " " << width;
        }
    }
  set_num_threads(threads);
}

TEST(SumRegion, ShortAndLongRows) {
  for (int64_t width : {1, 3, 63, 64, 200})
    for (int sources : {2, 3, 5})
      for (DType dtype : {int32, float32, bfloat16}) {
        Array a = numbers({9, 200}, dtype), out = Array::empty({9, width}, dtype);
        std::vector<const std::byte*> src(static_cast<size_t>(sources), a.bytes());
        sum_region(out.bytes(), out.strides, src, a.strides, {9, width}, dtype);
        visit_dtype(dtype, [&](auto tag) {
          using T = typename decltype(tag)::type;
          for (int64_t i = 0; i < 9; ++i)
            for (int64_t j = 0; j < width; ++j)
              ASSERT_EQ(static_cast<float>(out.data<T>()[i * width + j]),
                        static_cast<float>(static_cast<T>(static_cast<float>((i * 200 + j) % 100 * sources))));
        });
      }
}

}  // namespace
}  // namespace holon::kernels
