// The index arithmetic of device kernels, on the host.
#include "holon/kernels/cuda/strides.h"

#include <gtest/gtest.h>

#include <random>

namespace holon::kernels::cuda {
namespace {

TEST(Divider, EqualsDivision) {
  std::mt19937 random(3);
  std::vector<uint32_t> divisors{1,   2,   3,   5,     7,     31,    32,       33,
                                 255, 256, 641, 65535, 65536, 65537, 1u << 30, (1u << 31) - 1};
  for (int i = 0; i < 200; ++i) divisors.push_back(random() % ((1u << 31) - 1) + 1);
  for (uint32_t d : divisors) {
    const Divider divider(d);
    std::vector<uint32_t> numbers{0, 1, d - 1, d, d + 1, (1u << 31) - 1, (1u << 31) - 2};
    for (int i = 0; i < 200; ++i) numbers.push_back(random());
    for (uint32_t n : numbers) {
      n &= (1u << 31) - 1;
      ASSERT_EQ(divider.quotient(n), n / d) << n << " / " << d;
    }
  }
}

// Where element i of the shape lies, axis by axis.
int64_t place(int64_t i, const Dims& shape, const Dims& strides) {
  int64_t at = 0;
  for (int a = shape.size() - 1; a >= 0; --a) {
    at += i % shape[a] * strides[a];
    i /= shape[a];
  }
  return at;
}

TEST(Strided, EqualsAxisByAxis) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    Dims shape;
    const int axes = static_cast<int>(random() % 6);
    for (int a = 0; a < axes; ++a) shape.push_back(random() % 5 == 0 ? 1 : 1 + random() % 4);
    Dims strides[2] = {contiguous_strides(shape), contiguous_strides(shape)};
    for (int a = 0; a < axes; ++a) {
      if (random() % 3 == 0)
        strides[1][a] = 0;
      else if (random() % 4 == 0)
        strides[1][a] = static_cast<int64_t>(random() % 50) - 25;
    }
    const Strided<2> index(shape, strides);
    EXPECT_EQ(index.count, shape.numel());
    Strided<2> wide = index;
    wide.small = false;  // as with 2^31 elements and more
    for (int64_t i = 0; i < index.count; ++i)
      for (int k = 0; k < 2; ++k) {
        ASSERT_EQ(index.at(i).v[k], place(i, shape, strides[k])) << shape.str() << " " << strides[k].str() << " " << i;
        ASSERT_EQ(wide.at(i).v[k], index.at(i).v[k]);
      }
  }
}

TEST(Strided, JoinsAxes) {
  const Dims shape{4, 1, 5, 6};
  const Dims plain = contiguous_strides(shape);
  const Strided<2> same(shape, {plain, plain});
  EXPECT_EQ(same.axes, 1);
  EXPECT_TRUE(same.contiguous());
  const Strided<2> turned({4, 5}, {{5, 1}, {1, 4}});
  EXPECT_EQ(turned.axes, 2);
  EXPECT_FALSE(turned.contiguous());
  const Strided<1> repeated({4, 5}, {{0, 0}});
  EXPECT_EQ(repeated.axes, 1);
  EXPECT_FALSE(repeated.contiguous());
  EXPECT_TRUE((Strided<1>({}, {{}}).contiguous()));
}

TEST(Strided, MoreThan32Bits) {
  const Dims shape{3, int64_t{1} << 31};
  const Strided<1> index(shape, {contiguous_strides(shape)});
  EXPECT_FALSE(index.small);
  EXPECT_EQ(index.at(shape.numel() - 1).v[0], shape.numel() - 1);
  const Strided<1> across({3, int64_t{1} << 31}, {{int64_t{1} << 33, 2}});
  EXPECT_EQ(across.at((int64_t{1} << 31) + 5).v[0], (int64_t{1} << 33) + 10);
}

TEST(BroadcastStrides, AlignsAtTheRight) {
  const Array a = Array::empty({3, 1}, float32);
  EXPECT_EQ(broadcast_strides(a, {2, 3, 4}), (Dims{0, 1, 0}));
}

}  // namespace
}  // namespace holon::kernels::cuda
