// x[...] from C++. What each key means is tested against NumPy in tests/python/test_indexing.py.
#include "holon/ops/indexing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/compare.h"
#include "holon/ops/create.h"
#include "holon/ops/rearrange.h"
#include "holon/ops/reduce.h"
#include "holon/ops/shape.h"

namespace holon {
namespace {

using indexing::Ellipsis;
using indexing::None;
using At = indexing::Slice;

Tensor counted(const Dims& shape) { return reshape(arange(static_cast<double>(shape.numel())), shape); }

std::vector<float> values(const Tensor& t) {
  Tensor whole = t.full();
  return {whole.data<float>().begin(), whole.data<float>().end()};
}

Tensor places(std::vector<int64_t> v) {
  Array a = Array::empty({static_cast<int64_t>(v.size())}, int64);
  std::copy(v.begin(), v.end(), a.data<int64_t>());
  return Tensor::local(a);
}

TEST(Indexing, ReadsAsPythonDoes) {
  Tensor x = counted({2, 3, 4});
  EXPECT_EQ(values(index(x, {1, At(1, {}), At({}, {}, 3)})), (std::vector<float>{16, 19, 20, 23}));
  EXPECT_EQ(index(x, {None, Ellipsis, -1}).shape(), (Dims{1, 2, 3}));
  EXPECT_EQ(values(index(x, {0, places({2, -3}), 1})), (std::vector<float>{9, 1}));
  EXPECT_EQ(values(index(x, {gt(x, 21)})), (std::vector<float>{22, 23}));
  EXPECT_EQ(index(x, {places({0, 1, 1}), At(), places({0, 1, 2})}).shape(), (Dims{3, 3}));
  EXPECT_EQ(index(x, {0}).array().storage, x.array().storage);
  EXPECT_THROW(index(x, {2}), Error);
  EXPECT_THROW(index(x, {places({3})}), Error);
}

TEST(Indexing, AStepMayBeAsLongAsItLikes) {
  constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
  Tensor x = counted({3, 2}).set_requires_grad();
  EXPECT_EQ(values(index(x, {At(1, {}, kLongest)})), (std::vector<float>{2, 3}));
  EXPECT_EQ(values(index(x, {At(-kLongest, kLongest, kLongest - 1)})), (std::vector<float>{0, 1}));
  EXPECT_EQ(index(x, {At(3, {}, kLongest)}).shape(), (Dims{0, 2}));
  sum(slice(x, 1, 1, std::nullopt, kLongest)).backward();
  EXPECT_EQ(values(x.grad()), (std::vector<float>{0, 1, 0, 1, 0, 1}));
  Tensor y = counted({3, 2});
  index_put_(y, {At(1, {}, kLongest)}, full({}, 9.0));
  EXPECT_EQ(values(y), (std::vector<float>{0, 1, 9, 9, 4, 5}));
}

TEST(Indexing, WritesHereOnTheTapeAndWithAddition) {
  Tensor x = counted({3, 2});
  index_put_(x, {places({2, 0}), 1}, full({}, 7.0));
  EXPECT_EQ(values(x), (std::vector<float>{0, 7, 2, 3, 4, 7}));
  index_put_(x, {places({1, 1})}, full({2}, 1.0), true);
  EXPECT_EQ(values(x), (std::vector<float>{0, 7, 4, 5, 4, 7}));
  index_put_(x, {At(0, 2), 0}, full({}, 10.0), true);
  EXPECT_EQ(values(x), (std::vector<float>{10, 7, 14, 5, 4, 7}));
  Tensor leaf = counted({3, 2}).set_requires_grad();
  EXPECT_THROW(index_put_(leaf, {0}, full({}, 1.0)), Error);
  Tensor y = mul(leaf, 3.0);
  index_put_(y, {places({1, 1})}, full({2}, 1.0), true);
  index_put_(y, {0}, full({}, 1.0));
  sum(y).backward();
  EXPECT_EQ(values(leaf.grad()), (std::vector<float>{0, 0, 3, 3, 3, 3}));
}

TEST(Indexing, EachRankWritesWhatItHolds) {
  comm::run_ranks(3, [](int) {
    for (Sbp sbp : {sbp::split(0), sbp::split(1), sbp::broadcast()}) {
      Placement all = Placement::all("cpu");
      Tensor x = counted({5, 2}).to_global(all, sbp::broadcast()).to_global(all, sbp);
      index_put_(x, {At(0, 5, 2), 1}, full({}, -1.0));
      index_put_(x, {places({3, -5})}, counted({2, 2}));
      index_put_(x, {places({4, 4}), 0}, full({2}, 1.0), true);
      EXPECT_EQ(values(x), (std::vector<float>{2, 3, 2, 3, 4, -1, 0, 1, 10, -1}));
      EXPECT_EQ(x.nd_sbp(), NdSbp(sbp));
      EXPECT_EQ(values(index(x, {At(1, 4), 0})), (std::vector<float>{2, 4, 0}));
    }
  });
}

// The product of its sizes overflows, that of its first strides and a place in them too (./dev test --asan sees it).
TEST(Indexing, NoPlaceOverflowsWhereThereAreNoElements) {
  constexpr int64_t kMany = int64_t{1} << 40;
  for (const Dims& shape : {Dims{0, kMany, kMany}, Dims{kMany, 0, kMany}, Dims{kMany, kMany, 0}}) {
    const Tensor x = empty(shape);
    for (int d = 0; d < 3; ++d) {
      if (shape[d] == 0) continue;
      for (const Tensor& y :
           {slice(x, d, kMany - 1), slice(x, d, 5, {}, kMany / 2), select(x, d, kMany - 1), narrow(x, d, kMany / 2, 3),
            index(x, std::vector<indexing::Index>(to_size(d + 1), At(-2, {}))), chunk(x, 2, d).back(), flip(x, {d}),
            diagonal(x, kMany / 2, d, (d + 1) % 3)}) {
        EXPECT_EQ(y.numel(), 0);
        EXPECT_EQ(y.array().offset, 0);
        for (int64_t stride : y.array().strides) EXPECT_EQ(stride, 0) << shape.str() << " along " << d;
      }
    }
  }
}

}  // namespace
}  // namespace holon
